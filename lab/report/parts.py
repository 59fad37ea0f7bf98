"""Shared by the parts of a report: columns, tables, the order of rows, and means over repeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from kvtrace.lab.matrix import text_of
from kvtrace.lab.results import Phase, Result
from kvtrace.queries.text import rounded
from kvtrace.reports.document import Block, Cell, Column, Table, Words, text_table

Part = tuple[str, list[Block]]
"""A subsection: its title and its blocks. Every part of a study yields none if it has nothing to show."""

COLUMNS: dict[str, tuple[str, str | None]] = {
    "jobs_done": ("jobs", None),
    "makespan_s": ("makespan s", "min"),
    "output_tokens_per_s": ("output tok/s", "max"),
    "requests_per_s": ("requests/s", "max"),
    "turn_ms_mean": ("turn mean ms", "min"),
    "jct_s_mean": ("JCT mean s", "min"),
    "jct_s_p99": ("JCT p99 s", "min"),
    "ttft_ms_mean": ("TTFT mean ms", "min"),
    "ttft_ms_p99": ("TTFT p99 ms", "min"),
    "ttft_later_ms": ("TTFT later turns ms", "min"),
    "tpot_ms_mean": ("TPOT ms", "min"),
    "cached_share": ("cached share", "max"),
    "preemptions": ("preemptions", None),
    "recomputed_tokens": ("recomputed tokens", None),
    "recomputing_s": ("recomputing s", None),
    "evicted_blocks": ("evicted blocks", None),
    "load_bytes": ("loaded bytes", None),
    "wasted_share": ("wasted KV slots, share", None),
}
"""The table's figures: their headings, and whether more or less is better."""


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[str] = ()) -> Table:
    """A table whose numbers have four significant digits.

    Args:
        names: Headings.
        rows: Numbers, text, None, or `Cell`s of them.
        numbers: Names of columns of numbers that also hold words, such as "failed".
    """
    known = text_table(names, rows).columns
    columns = [Column(column.name, number=column.number or column.name in numbers) for column in known]
    return Table(columns, [[_worded(value) for value in row] for row in rows])


def _worded(value: Any) -> Any:
    if isinstance(value, Cell):
        return Cell(_worded(value.value), value.mark)
    return Words(value if isinstance(value, str) else rounded(value))


def axes_and_repeat(result: Result) -> list[tuple[str, Any]]:
    """A cell's axes with their values, the repeat last."""
    return [
        *((axis, value) for axis, value in result.cell.axes.items() if axis != "repeat"),
        ("repeat", result.cell.repeat),
    ]


def rank(values: dict[str, list[str]], axis: str, value: str) -> int:
    """The place of a value on an axis, as the matrix has it; unknown ones come last."""
    if axis not in values:
        return int(value)  # a repeat
    return values[axis].index(value) if value in values[axis] else len(values[axis])


def numbered(phase: Phase) -> str:
    """A phase's place and workload."""
    return f"{phase.position}: {phase.workload['name']}"


def alike(results: Sequence[Result]) -> Iterator[tuple[list[str], str, list[Phase]]]:
    """Axes without the repeat, a phase's label, and the phase in all repeats of that cell."""
    found: dict[tuple[tuple[str, ...], str], list[Phase]] = {}
    for result in results:
        axes = tuple(text_of(value) for axis, value in result.cell.axes.items() if axis != "repeat")
        for phase in result.phases:
            found.setdefault((axes, phase.label), []).append(phase)
    for (axes, label), phases in found.items():
        yield list(axes), label, phases


def axes_of(results: Sequence[Result]) -> list[str]:
    """The axes' names without the repeat."""
    return [axis for axis in results[0].cell.axes if axis != "repeat"]


def span(values: Sequence[float | None]) -> str | float | None:
    """A mean, and the lowest and the highest of several values."""
    known = [value for value in values if value is not None]
    if not known or rounded(min(known)) == rounded(max(known)):
        return fmean(known) if known else None
    return between(fmean(known), min(known), max(known))


def between(mean: float, low: float, high: float) -> str:
    """A mean with its range."""
    return f"{rounded(mean)} ({rounded(low)} to {rounded(high)})"


def mean_of(phases: Sequence[Phase], name: str) -> float | None:
    """The mean of a figure over the phases that have it."""
    return known_mean(phase.figures.get(name) for phase in phases)


def known_mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def last_over_first(turns_ms: Sequence[float]) -> float | None:
    """Latency of the last turn over that of the first."""
    return turns_ms[-1] / turns_ms[0] if len(turns_ms) > 1 and turns_ms[0] else None
