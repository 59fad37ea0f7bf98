"""Each value of the compared axis against the first one, and causes of an unfair comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvtrace.lab.compare import DRAWN, Change, changes, changes_of_runs, unfair
from kvtrace.lab.report.parts import COLUMNS, Part, table
from kvtrace.lab.results import Result
from kvtrace.queries.statistics import RESAMPLES, RULE
from kvtrace.queries.text import rounded
from kvtrace.reports.document import Items, Paragraph, Words

_METRICS = {"jct_s": "JCT (s)", "ttft_ms": "TTFT (ms)"}
_CHANCE = "within what two runs differ by"


def fairness(results: Sequence[Result], compare: str | None) -> Iterator[Part]:
    """Causes of an unfair comparison."""
    if notes := unfair(results, compare) if compare else []:
        yield "Is it fair?", [Items([Words(note) for note in notes], "warning")]


def comparison(results: Sequence[Result], compare: str, values: list[str]) -> Iterator[Part]:
    """Each value of the compared axis against the first one, by job completion time and time to first token."""
    found = list(changes(results, compare, values)) if len(values) > 1 else []
    if not found:
        return
    head = [*found[0].group, "workload", compare, "of", "jobs", values[0]]
    head += ["difference", "95% interval", "share", "verdict"]
    of_runs = _directions_of_runs(results, compare, values)
    reading = (
        f"Mean difference over the jobs that both completed, pair by pair, with a 95% interval of {RESAMPLES:,} "
        f"bootstrap samples. {RULE}. TTFT is a job's mean over its turns. An interval that has 0 in it tells nothing "
        "apart. Jobs of one run share an engine and are not independent, so one without 0 may still be the difference "
        "between two runs: repeats tell more than the interval does."
    )
    numbers = ("jobs", values[0], "difference", "95% interval", "share")
    rows = []
    for change in found:
        verdict = change.difference.direction or "too few pairs"
        if verdict in ("higher", "lower") and of_runs.get(_place_of(change, DRAWN[change.metric]), {verdict}) != {
            verdict
        }:
            verdict += f", {_CHANCE}"
        before, after = _change(change)
        rows.append([*before, _METRICS[change.metric], change.difference.pairs, *after, verdict])
    yield f"Against {values[0]}", [Paragraph([reading], "hint"), table(head, rows, numbers)]


def comparison_of_runs(results: Sequence[Result], compare: str, values: list[str]) -> Iterator[Part]:
    """Each value of the compared axis against the first one, by draws of predicted cells."""
    found = list(changes_of_runs(results, compare, values))
    if not found:
        return
    rows = []
    for change in found:
        before, after = _change(change)
        verdict = _CHANCE if change.difference.direction == "unclear" else change.difference.direction
        rows.append([*before, COLUMNS[change.metric][0], *after, verdict])
    reading = (
        "Predicted, not measured: difference of the means over draws of step times. The 95% interval is that of the "
        "difference between one run of each. With 0 in it, two runs of the same may differ by as much."
    )
    head = [*found[0].group, "workload", compare, "of", values[0], "difference", "95% interval", "share", "verdict"]
    numbers = (values[0], "difference", "95% interval", "share")
    yield f"Against {values[0]}, between two runs", [Paragraph([reading], "hint"), table(head, rows, numbers)]


def _directions_of_runs(results: Sequence[Result], compare: str, values: list[str]) -> dict[Any, set[str]]:
    """Directions of differences between two runs, by place; one a repeat."""
    found: dict[Any, set[str]] = {}
    for change in changes_of_runs(results, compare, values):
        found.setdefault(_place_of(change, change.metric), set()).add(change.difference.direction)
    return found


def _place_of(change: Change, metric: str) -> tuple[Any, ...]:
    group = tuple((axis, value) for axis, value in change.group.items() if axis != "repeat")
    return group, change.phase, change.value, metric


def _change(change: Change) -> tuple[list[Any], list[Any]]:
    """The cells of a change before its metric, and those after it but for the verdict."""
    found = change.difference
    span = found.interval
    return (
        [*change.group.values(), change.phase, change.value],
        [
            found.base,
            found.value,
            f"{rounded(span.low)} to {rounded(span.high)}" if span else "-",
            f"{100 * found.relative:+.1f}%" if found.base else "-",
        ],
    )
