"""`kvtrace explain`: one request, step or block, as the page's panel tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from kvtrace.cli.output import quiet_pipe
from kvtrace.errors import needs_analysis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.queries.explain import Section


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(explain)


def explain(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="The trace, or its run directory.")],
    subject: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A request by any of its ids, SESSION/TURN or the beginning of one; step:N; block:N; or an address of "
            "the page.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON object, sections by title.")] = False,
) -> None:
    """Explain one request, step or block.

    Of a request: its times, why it waited and missed, who preempted it and for whom, and what ran beside it.
    """
    with needs_analysis():
        from kvtrace.queries import Trace
        from kvtrace.queries.explain import explain as explain_subject
        from kvtrace.queries.identify import identify
    if Path(subject).exists() and not trace.exists():
        trace, subject = Path(subject), str(trace)
    with needs_analysis(), Trace(trace) as opened:
        sections = explain_subject(opened, identify(opened, subject))
    with quiet_pipe() as stdout:
        if as_json:
            stdout.write(json.dumps({each.title: each.facts for each in sections}, indent=1) + "\n")
        else:
            _print(sections, stdout)


def _print(sections: Sequence[Section], file: TextIO) -> None:
    from textwrap import wrap

    from kvtrace.cli.terminal import width_of

    width = width_of(file) if file.isatty() else 100
    for number, section in enumerate(sections):
        file.write(("\n" if number else "") + section.title + "\n")
        names = max((len(name) for name, _ in section.facts), default=0)
        for name, text in section.facts:
            lines = wrap(text, max(20, width - names - 4), drop_whitespace=False) or [""]
            file.write(f"  {name:<{names}}  {lines[0].rstrip()}\n")
            file.writelines(f"  {'':<{names}}  {line.strip()}\n" for line in lines[1:])
