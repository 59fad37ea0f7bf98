"""`kvtrace snapshot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def snapshot(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="What `kvtrace record -o` was given.")],
        output: Annotated[
            Path | None,
            typer.Option("--output", "-o", metavar="COPY", help="Run directory to make. Default: RUN-DATE-TIME."),
        ] = None,
    ) -> None:
        """Freeze a recording that goes on: COPY holds what is there now, and `kvtrace ingest COPY` reads it."""
        from kvtrace.retention.snapshot import snapshot as freeze
        from kvtrace.retention.snapshot import snapshot_name

        typer.echo(freeze(run, output or snapshot_name(run.absolute())))
