"""The same workload cold and warm, and at other places among the phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvtrace.lab.matrix import text_of
from kvtrace.lab.report.parts import COLUMNS, Part, alike, axes_and_repeat, axes_of, span, table
from kvtrace.lab.results import Phase, Result
from kvtrace.reports.document import Paragraph

_PHASES_TOLD = ("ttft_ms_mean", "output_tokens_per_s", "cached_share")


def cold_and_warm(results: Sequence[Result]) -> Iterator[Part]:
    """Workloads that a cell ran more than once: the mean of repeats, with the lowest and the highest."""
    caching = [result for result in results if result.cell.prefix_caching]
    found = {(*axes, label): phases for axes, label, phases in alike(caching)}
    rows = [
        [
            *place,
            *(
                span([phase.figures.get(name) for phase in phases])
                for name in ("ttft_ms_mean", "cached_share")
                for phases in (found[(*place[:-1], warm[0].workload["name"])], warm)
            ),
        ]
        for place, warm in found.items()
        if warm[0].again
    ]
    if rows:
        numbers = ["TTFT cold ms", "TTFT warm ms", "cached cold", "cached warm"]
        reading = "The same requests again on the same engine."
        yield "Cold and warm", [Paragraph([reading]), table([*axes_of(results), "workload", *numbers], rows, numbers)]


def orders(results: Sequence[Result]) -> Iterator[Part]:
    """A workload at several places in cells that differ in their phases' order only."""
    found: dict[tuple[str, str], dict[int, list[Phase]]] = {}
    for result in results:
        if "phases" in result.cell.axes:
            rest = ", ".join(
                f"{axis} {text_of(value)}"
                for axis, value in axes_and_repeat(result)
                if axis not in ("phases", "repeat")
            )
            for phase in result.phases:
                found.setdefault((rest, phase.label), {}).setdefault(phase.position, []).append(phase)
    rows = [
        [rest, label, position + 1, *(span([phase.figures.get(name) for phase in phases]) for name in _PHASES_TOLD)]
        for (rest, label), places in found.items()
        if len(places) > 1
        for position, phases in sorted(places.items())
    ]
    if rows:
        numbers = ["place", *(COLUMNS[name][0] for name in _PHASES_TOLD)]
        yield "Does the order of phases matter?", [table(["cells", "workload", *numbers], rows, numbers)]
