"""`kvtrace doctor`: what would be recorded here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvtrace.doctor.check import Check

_WIDTH = 80
_INDENT = " " * 26


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(doctor)


def doctor(
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="RUN", help="Run directory that you would record to."),
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON object.")] = False,
) -> None:
    """Say what would be recorded here, and what would be missing.

    Run it with the Python that has vLLM. It starts no engine, imports neither vLLM nor torch, and leaves no file.
    The exit code is 1 if a recording would not work.
    """
    from kvtrace.doctor.check import State
    from kvtrace.doctor.examine import examine

    checks = [_shortened(check) for check in examine(output)]
    works = not any(check.state is State.problem for check in checks)
    if as_json:
        text = json.dumps({"works": works, "checks": [_as_dict(check) for check in checks]}, indent=1)
    else:
        text = "\n".join(lines(checks, works=works))
    typer.echo(text)
    raise typer.Exit(0 if works else 1)


def lines(checks: Sequence[Check], *, works: bool) -> Iterator[str]:
    """The checks as text, folded for an 80-column terminal."""
    fold = partial(fill, width=_WIDTH, break_on_hyphens=False, break_long_words=False)
    for check in checks:
        head = f"{check.state.value:<9}{check.name:<16} "
        yield fold(check.text, initial_indent=head, subsequent_indent=_INDENT)
        yield from (fold(text, initial_indent=_INDENT, subsequent_indent=f"{_INDENT}  ") for text in check.details)
    yield "A recording would work here." if works else "A recording would not work here: see the lines with `problem`."


def _as_dict(check: Check) -> dict[str, object]:
    return {
        "check": check.name,
        "state": check.state.value,
        "text": check.text,
        "details": list(check.details),
        "facts": check.facts,
    }


def _shortened(check: Check) -> Check:
    """Write `~` for the home directory, for its name may be a person's, and make the rest safe to print."""
    from kvtrace.escape import inert

    home = str(Path.home())

    def shorten(text: str) -> str:
        return inert(text.replace(home, "~") if len(home) > 1 else text)

    return replace(check, text=shorten(check.text), details=tuple(map(shorten, check.details)))
