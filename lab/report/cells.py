"""A row a cell, the cells that failed, and the means of repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvtrace.lab.compare import groups
from kvtrace.lab.matrix import text_of
from kvtrace.lab.report.parts import COLUMNS, Part, alike, axes_of, numbered, span, table
from kvtrace.lab.results import Phase, Result
from kvtrace.queries.text import rounded
from kvtrace.reports.document import Cell, Paragraph


def cells(results: Sequence[Result], axes: list[str], compare: str | None) -> Iterator[Part]:
    """A row a cell and phase, best of each comparison marked; then the cells that failed."""
    repeats = any(result.cell.repeat for result in results)
    phases = any(len(result.phases) > 1 for result in results)
    best = _best(results, compare)
    columns = [
        name for name in COLUMNS if any(p.figures.get(name) not in (None, 0) for r in results for p in r.phases)
    ] or ["jobs_done"]
    rows: list[list[Any]] = []
    for result in results:
        head = [*(text_of(result.cell.axes[axis]) for axis in axes), *([str(result.cell.repeat)] if repeats else [])]
        for phase in result.phases:
            marks = {name: (result.place.name, result.cell.repeat, phase.label, name) in best for name in columns}
            figures = [Cell(phase.figures.get(name), "best" if marks[name] else "") for name in columns]
            rows.append([*head, *([numbered(phase)] if phases else []), *figures])
        if result.status != "ok":
            rows.append([*head, *(["-"] if phases else []), *(["failed"] * len(columns))])
    numbers = [COLUMNS[name][0] for name in columns]
    names = [*axes, *(["repeat"] if repeats else []), *(["phase"] if phases else []), *numbers]
    drawn = all(phase.draws for result in results for phase in result.phases)
    if repeats:
        reading = "Bold marks the best number of a comparison, of each repeat by itself."
    elif drawn:
        reading = (
            "Bold marks the best number of a comparison, also where two runs of the same differ by more: see Draws."
        )
    else:
        reading = (
            "Bold marks the best number of a comparison. Each cell ran once: cells that do the same work differ, too, "
            "and how much is not known without repeats."
        )
    notes = [Paragraph([reading], "hint")] if best else []
    yield "Cells", [*notes, table(names, rows, numbers)]
    if failed := [[result.cell.label, result.error or ""] for result in results if result.status != "ok"]:
        yield "Failed cells", [table(["cell", "error"], failed)]


def _best(results: Sequence[Result], compare: str | None) -> set[tuple[str, int, str, str]]:
    """Cell, repeat, phase and figure of the best of each group of comparable cells; repeats have other requests."""
    found = set()
    for members in groups(results, compare).values() if compare else [list(results)]:
        comparable: dict[tuple[int, str], list[tuple[str, Phase]]] = {}
        for result in members:
            for phase in result.phases:
                comparable.setdefault((result.cell.repeat, phase.label), []).append((result.place.name, phase))
        for (repeat, label), phases in comparable.items():
            for name, (_, better) in COLUMNS.items():
                values = [(value, cell) for cell, phase in phases if (value := phase.figures.get(name)) is not None]
                if better and len({rounded(value) for value, _ in values}) > 1:
                    _, winner = (min if better == "min" else max)(values)
                    found.add((winner, repeat, label, name))
    return found


def repeats(results: Sequence[Result]) -> Iterator[Part]:
    """The mean of each cell over its repeats, with the lowest and the highest."""
    if not any(result.cell.repeat for result in results):
        return
    columns = ["makespan_s", "jct_s_mean", "ttft_later_ms", "cached_share"]
    rows = [
        [*axes, name, len(phases), *(span([phase.figures.get(each) for phase in phases]) for each in columns)]
        for axes, name, phases in alike(results)
    ]
    headings = [COLUMNS[name][0] for name in columns]
    reading = "Mean of the repeats of each cell, with the lowest and the highest of them in parentheses."
    head = [*axes_of(results), "workload", "repeats", *headings]
    yield "Repeats", [Paragraph([reading], "hint"), table(head, rows, ["repeats", *headings])]
