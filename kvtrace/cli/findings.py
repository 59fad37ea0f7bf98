"""`kvtrace findings`: what cost a run most, in a few sentences."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.errors import needs_analysis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.queries.findings import Finding


_BOUND = "\N{NO-BREAK SPACE}"


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(findings)


def findings(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="The trace.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON array of objects.")] = False,
) -> None:
    """Say what cost a run most, and what to try.

    Prints up to seven findings, the most expensive first, each with the query that shows it.
    """
    with needs_analysis():
        from kvtrace.queries import Trace
        from kvtrace.queries.findings import find_findings, without_findings

        with Trace(trace) as opened:
            found = find_findings(opened)
            instead = without_findings(opened)
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in found], indent=1))
        return
    if not found:
        typer.echo(instead)
    for line in lines(found):
        typer.echo(line)


def lines(found: Sequence[Finding]) -> Iterator[str]:
    """The findings as text, folded for an 80-column terminal."""
    for number, finding in enumerate(found, 1):
        yield _fold(finding.text, f"{number}. ")
        worst = f"; the worst: `kvtrace explain {finding.worst}`" if finding.worst else ""
        yield _fold(f"({finding.basis}: `kvtrace query {finding.evidence}`{worst})").replace("`", "")
        if finding.remedy:
            yield _fold(finding.remedy, "   Try: ")


def _fold(text: str, start: str = "   ") -> str:
    """Fold for 80 columns; what stands between backticks stays on one line, so that it can be copied."""
    from textwrap import fill

    bound = re.sub("`[^`]+`", lambda code: code[0].replace(" ", _BOUND), text)
    folded = fill(bound, 78, initial_indent=start, subsequent_indent="   ", break_on_hyphens=False)
    return folded.replace(_BOUND, " ")
