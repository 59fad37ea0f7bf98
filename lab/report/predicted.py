"""Predicted cells: where they come from, how they compare with measured ones, and their draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from kvtrace.lab.accuracy import Beside, Order, beside, order_of
from kvtrace.lab.matrix import text_of
from kvtrace.lab.report.parts import COLUMNS, Part, axes_of, between, numbered, table
from kvtrace.lab.results import MADE, MADES, Phase, Result
from kvtrace.reports.document import Block, Items, Paragraph, Words


def predictions(results: Sequence[Result], compare: str | None) -> Iterator[Part]:
    """Where predicted cells come from, and how they compare with the measured ones of the same settings."""
    predicted = [result for result in results if result.made == "predicted" and result.status == "ok"]
    if not predicted:
        return
    notes: Counter[str] = Counter()
    for result in predicted:
        told = result.facts.get("predicted", {})
        notes.update([f"step times of {told.get('time_from', 'nothing')}", *told.get("notes", [])])
    counted = [Words(f"{note} ({count} of {len(predicted)} cells)") for note, count in notes.items()]
    reading = "Their figures are predicted by vLLM's own scheduler in virtual time; nothing of them was measured."
    pairs = beside(results)
    yield "Predicted cells", [Paragraph([reading]), Items(counted, ""), *(_accuracy(pairs, compare) if pairs else [])]


def _accuracy(pairs: Sequence[Beside], compare: str | None) -> Iterator[Block]:
    axes = [axis for axis in pairs[0].measured.cell.axes if axis not in (MADE, "repeat")]
    repeats = any(pair.measured.cell.repeat for pair in pairs)
    phases = any(pair.position for pair in pairs)
    rows = [
        [
            *(text_of(pair.measured.cell.axes[axis]) for axis in axes),
            *([str(pair.measured.cell.repeat)] if repeats else []),
            *([numbered(pair.phases[0])] if phases else []),
            *(value for name in ("jct_s_mean", "ttft_ms_p50", "cached_share") for value in pair.values(name)),
            f"{pair.error('jct_s_mean'):+.1%}",
        ]
        for pair in pairs
    ]
    figures = [f"{figure}, {made}" for figure in ("JCT mean s", "TTFT p50 ms", "cached share") for made in MADES]
    what = "phases of cells" if phases else "cells"
    if len(pairs) > (cells := len({(pair.measured.name, pair.position) for pair in pairs})):
        what = f"runs of {cells} {what}"
    text = f"{len(pairs)} {what} are also measured. Mean absolute error of the mean JCT: {_mean_error(pairs)}"
    others = [pair for pair in pairs if not pair.own_times]
    if 0 < len(others) < len(pairs):
        text += f"; of the {len(others)} without the measured cell's own step times: {_mean_error(others)}"
    text += "."
    if drawn := [pair for pair in pairs if pair.within_draws is not None]:
        within = sum(bool(pair.within_draws) for pair in drawn)
        text += f" Of the {len(drawn)} with draws, {within} are measured within what two runs differ by."
    order = order_of(pairs, compare) if compare else Order(0, 0, 0, 0)
    if order.pairs:
        text += f" {order.pairs} pairs of cells differ in {compare} only; prediction orders {order.right} as measured."
    if order.apart:
        text += (
            f" Of the {order.apart} whose measured difference has an interval without 0, it orders {order.apart_right} "
            "so."
        )
    yield Paragraph([text])
    places = [*axes, *(["repeat"] if repeats else []), *(["phase"] if phases else [])]
    yield table([*places, *figures, "JCT error"], rows, [*figures, "JCT error"])


def _mean_error(pairs: Sequence[Beside]) -> str:
    return f"{fmean(abs(pair.error('jct_s_mean')) for pair in pairs):.1%}" if pairs else "-"


def draws(results: Sequence[Result]) -> Iterator[Part]:
    """Figures of each predicted cell over its draws of step times."""
    drawn = [(result, phase) for result in results for phase in result.phases if phase.draws]
    if not drawn:
        return
    repeats = any(result.cell.repeat for result, _ in drawn)
    columns = ["makespan_s", "jct_s_mean", "ttft_ms_mean", "cached_share", "preemptions", "evicted_blocks"]
    rows = [
        [
            *(text_of(value) for axis, value in result.cell.axes.items() if axis != "repeat"),
            *([str(result.cell.repeat)] if repeats else []),
            phase.workload["name"],
            max(len(values) for values in phase.draws.values()),
            *(_drawn(phase, name) for name in columns),
        ]
        for result, phase in drawn
    ]
    headings = [COLUMNS[name][0] for name in columns]
    reading = (
        "Predicted, not measured: mean over replays of each cell with step times that vary as the recording's do, and "
        "its 95% interval. Two runs of the same cell would differ by as much. In other tables, a predicted cell's "
        "figures are those of one replay, with the times that are expected of its steps."
    )
    head = [*axes_of(results), *(["repeat"] if repeats else []), "workload", "draws", *headings]
    yield "Draws", [Paragraph([reading], "hint"), table(head, rows, ["draws", *headings])]


def _drawn(phase: Phase, name: str) -> str | None:
    spread = phase.spread(name)
    return between(*spread) if spread else None
