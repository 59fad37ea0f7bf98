"""`kvtrace view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvtrace.errors import KvtraceError, needs_analysis


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def view(
        trace: Annotated[Path, typer.Argument(help="A trace made by `kvtrace ingest`.")],
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="The page to write. Default: TRACE with .html.")
        ] = None,
        max_steps: Annotated[
            int, typer.Option(min=1, help="Draw at most this many bars; more steps than that share bars.")
        ] = 20_000,
        max_requests: Annotated[
            int, typer.Option(min=1, help="Draw at most this many requests, the longest ones.")
        ] = 5_000,
        force: Annotated[bool, typer.Option("--force", help="Replace a file that is not a kvtrace page.")] = False,
    ) -> None:
        """Write a trace as one static page that opens from disk, without a server."""
        path = output or trace.with_suffix(".html")
        if path.exists() and trace.exists() and path.samefile(trace):
            raise KvtraceError(f"{path}: is the trace itself; name another file with -o")
        with needs_analysis():
            from kvtrace.viewer.export import export
            from kvtrace.viewer.page import render, write
        size = write(render(export(trace, max_steps, max_requests)), path, force=force)
        typer.echo(f"{path}  {size / 1e6:.2f} MB")
