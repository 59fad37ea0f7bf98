"""`kvtrace metrics`: a recording's counts for Prometheus, while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvtrace.errors import needs_analysis


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(metrics)


def metrics(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory; the recording may start later.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 9400,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    with_names: Annotated[bool, typer.Option("--with-names", help="Serve the models' names, too.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and exit.")] = False,
) -> None:
    """Serve a live recording's counts to Prometheus.

    Reads the files of the recording, so the engine does nothing for it. Serves counts only: no ids, no texts.
    """
    with needs_analysis():
        from kvtrace.live.follow import Follower
        from kvtrace.live.openmetrics import render
        from kvtrace.live.server import Exporter
    if once:
        follower = Follower(run, patience_s=0)
        follower.poll()
        typer.echo(render(follower, open_metrics=False, with_names=with_names), nl=False)
        return
    exporter = Exporter(Follower(run), host, port, with_names=with_names)
    typer.echo(f"kvtrace: metrics of {run} at {exporter.url}; Ctrl-C ends", err=True)
    try:
        exporter.run()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
