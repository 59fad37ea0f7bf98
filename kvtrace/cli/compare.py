"""`kvtrace compare`: runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from kvtrace.cli.output import quiet_pipe
from kvtrace.errors import KvtraceError, needs_analysis

if TYPE_CHECKING:
    from kvtrace.reports.compare import Comparison
    from kvtrace.reports.gates import Judgement


class PairBy(StrEnum):
    """Rule by which requests of two runs are paired."""

    session = "session"
    id = "id"
    order = "order"


class GroupBy(StrEnum):
    """Property by which one run's requests are grouped."""

    warmth = "warmth"
    sharing = "sharing"
    phase = "phase"


Traces = Annotated[
    list[Path],
    typer.Argument(metavar="A B [C ...]", help="Traces; the others are compared with the first."),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FOLDER", help="Also write a page, Markdown and CSV there."),
]
Pair = Annotated[
    PairBy | None,
    typer.Option(
        "--pair",
        help="Pair requests by session and turn, by the client's id, or by order of arrival.  "
        "[default: the first of these that pairs half of them]",
        show_default=False,
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="CONDITION",
        help="A gate: 'METRIC < LIMIT' or 'METRIC > LIMIT', such as 'hit_rate < -2pp' or 'ttft_p99 > +5%', of "
        "each run's difference from A. Exits with 3 if one holds, with 4 if the recordings cannot tell. "
        "-o also writes gates.xml (JUnit).",
        show_default=False,
    ),
]
Repetitions = Annotated[
    list[Path] | None,
    typer.Option(
        "--repetition",
        metavar="TRACE",
        help="A recorded again, twice or more: a gate fails only on differences larger than between these.",
        show_default=False,
    ),
]
By = Annotated[
    GroupBy | None,
    typer.Option(
        "--by",
        help="Compare groups of one trace's requests instead: cold and warm prompts, shared and unique ones, "
        "or phases by their session tags.",
        show_default=False,
    ),
]
SkipRequests = Annotated[
    int,
    typer.Option("--skip-requests", min=0, metavar="N", help="With --by: leave out the first N requests, the warm-up."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a compare.html that kvtrace did not make.")]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(compare)


def compare(
    traces: Traces,
    output: Output = None,
    pair_by: Pair = None,
    fail_if: FailIf = None,
    repetitions: Repetitions = None,
    by: By = None,
    skip_requests: SkipRequests = 0,
    force: Force = False,
) -> None:
    """Compare runs, request by request.

    Prints metrics, paired differences with bootstrap 95% intervals, and warnings where the comparison is unfair.
    """
    if by is not None:
        if len(traces) != 1 or output is not None or pair_by is not None or fail_if or repetitions:
            raise KvtraceError(
                "--by compares the requests of one trace, on the terminal: no -o, --pair, --fail-if, --repetition", 2
            )
        _print_groups(traces[0], by.value, skip_requests)
        return
    with needs_analysis():
        from kvtrace.reports import gates
        from kvtrace.reports.compare import compare as compare_runs
        from kvtrace.reports.report import check_folder
        from kvtrace.reports.side_by_side import PAGE, write_comparison

        if output is not None:
            check_folder(output, PAGE, force=force)
        conditions = [gates.read_gate(text) for text in fail_if or []]
        comparison = compare_runs(traces, pair_by.value if pair_by else None, repetitions or [])
        judgements = gates.judge(conditions, comparison)
        with quiet_pipe() as stdout:
            _print(comparison, stdout)
            _print_gates(judgements, stdout)
        if output is not None:
            typer.echo(f"{write_comparison(comparison, output, judgements, force=force)}", err=True)
        if code := gates.exit_code(judgements):
            raise typer.Exit(code)


def _print_groups(trace: Path, by: str, skip_requests: int) -> None:
    with needs_analysis():
        from kvtrace.cli.terminal import print_fitting
        from kvtrace.queries.text import inert
        from kvtrace.reports.groups import compare_groups

        rows = compare_groups(trace, by, skip_requests)
    compared = ["metric", "unit", "group", "requests", "value"]
    names = [*compared, "against", "requests", "value", "difference", "95% interval"]
    cells = [
        (
            *(row.metric, row.unit, inert(row.group), f"{row.requests:,}", f"{row.value:.4g}"),
            *(inert(row.base_group), f"{row.base_requests:,}", f"{row.base:.4g}", f"{row.difference:+.4g}"),
            f"{row.interval.low:+.4g} .. {row.interval.high:+.4g}" if row.interval else "-",
        )
        for row in rows
    ]
    right = [False, False, False, True, True, False, True, True, True, True]
    with quiet_pipe() as stdout:
        print_fitting(names, cells, right, [0, 1, 2, 4, 5, 7, 8, 9, 3, 6], stdout)


def _print_gates(judgements: Sequence[Judgement], stdout: TextIO) -> None:
    if judgements:
        typer.echo("", file=stdout)
    for x in judgements:
        typer.echo(f"{x.verdict}: {x.gate.text}, {x.letter}: {x.change}; {x.reason}", file=stdout)


def _print(comparison: Comparison, stdout: TextIO) -> None:
    from kvtrace.cli.terminal import print_fitting
    from kvtrace.queries.text import inert
    from kvtrace.reports.side_by_side import READING, heading, lines

    for line in heading(comparison):
        typer.echo(line, file=stdout)
    for warning in comparison.warnings:
        typer.echo(f"kvtrace: may be unfair: {inert(warning)}", err=True)
    for other, pairing in enumerate(comparison.pairings, 1):
        letter = comparison.letters[other]
        typer.echo(f"\n{letter} against A: {pairing.description}", file=stdout)
        if comparison.repeats[other - 1]:
            typer.echo(f"{letter} repeats A: same command and settings, so these differences are noise", file=stdout)
        values = ["metric", "unit", "better", "A", letter]
        names = [*values, "difference", "change", "95% interval", "pairs", f"{letter} is"]
        rows = [line.cells for line in lines(comparison, other)]
        right = [False] * 3 + [True] * 6 + [False]
        print_fitting(names, rows, right, [0, 3, 4, 9, 1, 6, 7, 5, 8, 2], stdout)
    typer.echo(f"\n{READING}", file=stdout)
    sys.stdout.flush()
