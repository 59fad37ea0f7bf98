"""`kvtrace record`."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def record() -> None:
        """Not written yet."""
        raise NotImplementedError
