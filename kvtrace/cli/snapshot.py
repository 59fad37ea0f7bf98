"""`kvtrace snapshot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def snapshot(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory, as given to `kvtrace record -o`.")],
        output: Annotated[
            Path | None,
            typer.Option("--output", "-o", metavar="COPY", help="Run directory to create.  [default: RUN-DATE-TIME]"),
        ] = None,
    ) -> None:
        """Copy a running recording as it is now.

        Read the copy with `kvtrace ingest COPY`. The recording goes on.
        """
        from kvtrace.retention.snapshot import snapshot as freeze
        from kvtrace.retention.snapshot import snapshot_name

        typer.echo(freeze(run, output or snapshot_name(run.absolute())))
