"""The report's plots: a figure of each phase against an axis or a workload's parameter, one line a compared value."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from kvtrace.lab.matrix import text_of
from kvtrace.lab.results import MADE, Phase, Result, Spread
from kvtrace.queries.plotting import COLOURS, MARKERS, label, legend, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = {
    "jct_s_mean": "mean job completion time (s)",
    "ttft_ms_mean": "mean time to first token (ms)",
    "ttft_later_ms": "mean time to first token of later turns (ms)",
    "output_tokens_per_s": "output tokens a second",
    "cached_share": "prompt tokens from a cache (share)",
}
AXES = {
    "rate": "arrivals (jobs/s)",
    "kv_tokens": "KV budget (tokens)",
    "evicted": "evicted tokens",
    "families": "families of prompts",
    "max_num_seqs": "most sequences at a time",
    "block_size": "block size (tokens)",
}
_MOST_PANELS = 4
_LARGEST = 1 << 63


class _Point(NamedTuple):
    """A phase's figure, and what it has over draws if it is predicted with some."""

    x: float
    y: float
    spread: Spread | None


def varied(results: Sequence[Result], compare: str | None) -> list[str]:
    """Candidates for an x axis: numeric parameters of workloads that differ between phases, then numeric axes."""
    parameters: dict[str, set[Any]] = {}
    axes: dict[str, set[Any]] = {}
    moving: set[str] = set()
    for result in results:
        for axis, value in result.cell.axes.items():
            axes.setdefault(axis, set()).add(_number(value))
        own: dict[str, set[Any]] = {}
        for phase in result.phases:
            for name, value in phase.workload["parameters"].items():
                own.setdefault(name, set()).add(_number(value))
        for name, values in own.items():
            parameters.setdefault(name, set()).update(values)
        moving |= {name for name, values in own.items() if len(values) > 1 and name != "seed"}
    shared = set.intersection(*(set(p.workload["parameters"]) for r in results for p in r.phases), moving)
    found = [name for name, values in parameters.items() if name in shared and None not in values]
    return found + [axis for axis, values in axes.items() if axis not in {compare, "repeat", MADE} and _numeric(values)]


def _number(value: Any) -> float | None:
    """A number that an axis can have; None: it is none."""
    return value if isinstance(value, float) or (isinstance(value, int) and abs(value) < _LARGEST) else None


def _numeric(values: set[Any]) -> bool:
    return len(values) > 1 and None not in values


def draw(results: Sequence[Result], compare: str | None, metric: str) -> Figure | None:
    """A panel for each further axis's value; None if there is nothing to draw, or nothing to draw it against."""
    done = [result for result in results if result.status == "ok"]
    xs = varied(done, compare)
    if not xs:
        return None
    x, rest = (
        xs[0],
        [axis for axis in (done[0].cell.axes if done else {}) if axis not in {xs[0], compare, "repeat", MADE}],
    )
    panels: dict[str, dict[tuple[str, str], list[_Point]]] = {}
    apart = x in done[0].cell.axes and any(len(set(result.cell.phases)) > 1 for result in done)
    for result in done:
        place = [f"{axis} {text_of(result.cell.axes[axis])}" for axis in rest]
        value = text_of(result.cell.axes[compare]) if compare else ""
        for phase in result.phases:
            panel = ", ".join([*place, *([phase.workload["name"]] if apart else [])])
            line = f"{value} unique prompts".strip() if phase.workload["parameters"].get("unique") else value
            if (y := phase.figures.get(metric)) is not None:
                point = _Point(_x(result, phase, x), y, phase.spread(metric))
                panels.setdefault(panel, {}).setdefault((line, result.made), []).append(point)
    drawn = [points for lines in panels.values() for points in lines.values()]
    if all(len(points) < 2 for points in drawn) or not any(point.y for points in drawn for point in points):
        return None
    chosen = dict(sorted(panels.items())[:_MOST_PANELS])
    figure = new_figure(FIGURES[metric], source="client.jsonl of each cell", columns=len(chosen), share_x=False)
    figure.set_figwidth(3.4 * len(chosen) + 2.2)
    for axes, (panel, by_line) in zip(figure.axes, chosen.items(), strict=True):
        _draw_lines(axes, by_line, sorted({line for each in chosen.values() for line in each}))
        axes.set_title(panel, fontsize=8)
        axes.set_ylim(bottom=0)
        label(axes, x=AXES.get(x, x), y=FIGURES[metric] if axes is figure.axes[0] else "")
    legend(figure.axes[-1])
    return figure


def _draw_lines(axes: Axes, by_line: dict[tuple[str, str], list[_Point]], lines: Sequence[tuple[str, str]]) -> None:
    """Lines through the means of repeats. Predicted ones are dashed, with hollow marks, in the measured colour.

    A vertical line is between what two runs of a predicted cell would lie.
    """
    names = sorted({name for name, _ in lines})
    for name, made in lines:
        at: dict[float, list[float]] = {}
        for point in by_line.get((name, made), []):
            at.setdefault(point.x, []).append(point.y)  # repeats
        points = sorted((px, fmean(ys)) for px, ys in at.items())
        number = names.index(name)
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        title = name or (made if len(lines) > 1 else None)
        if made == "predicted":
            style |= {"linestyle": "--", "markerfacecolor": "none"}
            title = f"{name} (predicted)" if name else made
        for point in by_line.get((name, made), []):
            if point.spread is not None:
                axes.vlines(point.x, point.spread.low, point.spread.high, color=style["color"], linewidth=0.8)
        axes.plot([px for px, _ in points], [py for _, py in points], label=title, markersize=4, **style)


def _x(result: Result, phase: Phase, name: str) -> float:
    value = result.cell.axes[name] if name in result.cell.axes else phase.workload["parameters"][name]
    return float(value)
