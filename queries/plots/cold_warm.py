"""Time to first token and hit rate of cold and warm prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, Frame, label, legend, new_figure, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.figure import Figure


def plot(frame: Frame) -> Figure:
    """Bars: above the median and 95th percentile of the time to first token, below the hit rate."""
    figure = new_figure("Cold and warm prompts", source="request, first_block", rows=2)
    draw(figure, frame, frame.prompts, "prompts")
    return figure


def draw(figure: Figure, frame: Frame, names: Iterable[object], axis: str) -> None:
    """Draw such rows into a figure of two axes; each bar has its name and its number of requests below.

    Args:
        figure: A figure of two axes, one above the other.
        frame: A row a bar: `p50_ttft_ms`, `p95_ttft_ms`, `hit_rate` and `requests`.
        names: A name a bar.
        axis: The name of the x axis.
    """
    times, rates = figure.axes
    if len(frame):
        places = range(len(frame))
        times.bar([i - 0.2 for i in places], frame.p50_ttft_ms, width=0.4, color=COLOURS[0], label="median")
        times.bar([i + 0.2 for i in places], frame.p95_ttft_ms, width=0.4, color=COLOURS[1], label="95th percentile")
        rates.bar(places, frame.hit_rate, width=0.6, color=COLOURS[2])
        labels = [f"{plain(name)}\n{count} requests" for name, count in zip(names, frame.requests, strict=True)]
        rates.set_xticks(places, labels)
    label(times, x="", y="time to first token (ms)")
    label(rates, x=axis, y="hit rate")
    rates.set_ylim(0, 1)
    legend(times)
