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
            list[Path],
            typer.Argument(metavar="TRACE", help="A trace made by `kvtrace ingest`; two or more are compared."),
        ],
        output: Annotated[
            Path | None,
            typer.Option("--output", "-o", metavar="PAGE", help="The page to write.  [default: TRACE with .html]"),
        ] = None,
        split: Annotated[
            bool, typer.Option("--split", help="Write a folder; its page loads data when needed.")
        ] = False,
        max_mb: Annotated[
            int,
            typer.Option(min=2, metavar="N", help="Largest page, in MB. The page says what was left out for it."),
        ] = 40,
        force: Annotated[bool, typer.Option("--force", help="Replace a file that is not a kvtrace page.")] = False,
    ) -> None:
        """Write a trace as one static page.

        It opens from disk, without a server.
        """
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
