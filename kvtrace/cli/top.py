"""`kvtrace top`: a recording on the terminal, while it goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.errors import needs_analysis


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(top)


def top(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory; the recording may start later.")],
    filter_text: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Show only requests whose id or session contains this.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
) -> None:
    """Show what an engine does with its KV cache, now.

    Reads the files of the recording, so the engine does nothing for it. `h` explains the keys.
    """
    with needs_analysis():
        from kvtrace.live.follow import Follower
        from kvtrace.live.terminal import Top, plain_frame
        from kvtrace.live.view import View
    view = View(filter=filter_text)
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        follower = Follower(run, with_names=True, patience_s=0)
        follower.poll()
        typer.echo(plain_frame(follower, view), nl=False)
        return
    try:
        Top(Follower(run, with_names=True), view).run()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
