"""A table a figure: a column for each value of the compared axis, a row for each setting of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from kvtrace.lab.matrix import text_of
from kvtrace.lab.report.parts import Part, axes_of, last_over_first, rank, span, table
from kvtrace.lab.results import Phase, Result
from kvtrace.queries.text import rounded
from kvtrace.reports.document import Block, Cell, Paragraph, Words


class _Shown(NamedTuple):
    """A figure of `side_by_side`: its title, what it is of a phase, and whether more or less is better."""

    title: str
    of: Callable[[Phase], float | None]
    better: str = "min"


def _figure(name: str, scale: float = 1.0) -> Callable[[Phase], float | None]:
    def of(phase: Phase) -> float | None:
        value = phase.figures.get(name)
        return None if value is None else value * scale

    return of


_SIDE_BY_SIDE = (
    _Shown("Mean job completion time, s", _figure("jct_s_mean")),
    _Shown("Mean turn, s", _figure("turn_ms_mean", 1e-3)),
    _Shown("Output tokens a second", _figure("output_tokens_per_s"), "max"),
    _Shown("Prompt tokens from a cache, share", _figure("cached_share"), "max"),
    _Shown("Mean time to first token, s", _figure("ttft_ms_mean", 1e-3)),
    _Shown("Mean time to first token of later turns, s", _figure("ttft_later_ms", 1e-3)),
    _Shown("Latency of the last turn over that of the first", lambda phase: last_over_first(phase.turns_ms)),
)


def side_by_side(results: Sequence[Result], compare: str, axes: dict[str, list[str]]) -> Iterator[Part]:
    """The tables of the figures that the phases have, one a figure."""
    found: dict[tuple[tuple[str, ...], str], dict[str, list[Phase]]] = {}
    others = [axis for axis in axes_of(results) if axis != compare] if results else []
    values = axes[compare]
    for result in results:
        place = tuple(text_of(result.cell.axes[axis]) for axis in others)
        for phase in result.phases:
            row = found.setdefault((place, phase.label), {})
            row.setdefault(text_of(result.cell.axes[compare]), []).append(phase)
    ranks = {place: [rank(axes, *each) for each in zip(others, place, strict=True)] for place, _ in found}
    rows = dict(sorted(found.items(), key=lambda row: ranks[row[0][0]]))
    if len(values) < 2 or len(rows) < 2:
        return
    several = len({label for _, label in rows}) > 1
    head = [*others, *(["workload"] if several else []), *values]
    blocks: list[Block] = []

    def add(title: str, cells: Callable[[list[list[Phase]]], list[Cell]], numbers: Sequence[str]) -> None:
        made = [cells([row.get(value, []) for value in values]) for row in rows.values()]
        if any(cell.value is not None for row in made for cell in row):
            heads = [[*place, *([label] if several else [])] for place, label in rows]
            rows_made = [[*one, *row] for one, row in zip(heads, made, strict=True)]
            blocks.extend([Paragraph([Words(title)]), table(head, rows_made, numbers)])

    for shown in _SIDE_BY_SIDE:
        add(shown.title, partial(_compared, shown), values)
    add("How latencies grow with the turns (inferred)", _shapes, ())
    reading = (
        "Bold marks the best of a row. Of repeats: the mean, with the lowest and the highest in parentheses. Where "
        "repeats differ by more than two values, these are not told apart."
    )
    if blocks:
        yield f"By {compare}", [Paragraph([reading], "hint"), *blocks]


def _compared(shown: _Shown, phases: list[list[Phase]]) -> list[Cell]:
    """A row's cells, the best ones marked."""
    found = [[value for phase in each if (value := shown.of(phase)) is not None] for each in phases]
    means = [fmean(each) for each in found if each]
    differ = len({rounded(mean) for mean in means}) > 1
    best = rounded((min if shown.better == "min" else max)(means)) if differ else None
    return [Cell(span(each), "best" if each and rounded(fmean(each)) == best else "") for each in found]


def _shapes(phases: list[list[Phase]]) -> list[Cell]:
    return [Cell(", ".join({phase.shape: None for phase in each if phase.shape}) or None) for each in phases]
