"""`kvtrace sql`."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def sql() -> None:
        """Not written yet."""
        raise NotImplementedError
