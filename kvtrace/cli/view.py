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
        traces: Annotated[
            list[Path], typer.Argument(help="A trace made by `kvtrace ingest`; two or more are compared.")
        ],
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="The page to write. Default: TRACE with .html.")
        ] = None,
        split: Annotated[
            bool, typer.Option("--split", help="Write a folder whose page loads its data as it needs them.")
        ] = False,
        max_mb: Annotated[
            int, typer.Option(min=2, help="Largest page, in MB; what finds no room is left out, and the page says so.")
        ] = 40,
        force: Annotated[bool, typer.Option("--force", help="Replace a file that is not a kvtrace page.")] = False,
    ) -> None:
        """Write a trace as one static page that opens from disk, without a server."""
        path = output or traces[0].with_suffix("" if split else ".html")
        for trace in traces:
            if path.exists() and trace.exists() and path.samefile(trace):
                raise KvtraceError(f"{path}: is the trace itself; name another file with -o")
        with needs_analysis():
            from kvtrace.viewer.page import make_folder, make_page
        if split:
            size = make_folder(traces, path, force=force)
            typer.echo(f"{path / 'index.html'}  {size / 1e6:.2f} MB in the folder")
        else:
            size = make_page(traces, path, max_bytes=max_mb * 1_000_000, force=force)
            typer.echo(f"{path}  {size / 1e6:.2f} MB")
