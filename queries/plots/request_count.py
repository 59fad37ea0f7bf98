"""Hit rate and time to first token as more requests are served."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, MARKERS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Lines over the request count, which doubles: above hit rates, below times to the first token."""
    figure = new_figure("By request count", source="request: the first so many in order of arrival", rows=2)
    rates, times = figure.axes
    lines = (
        (rates, "hit_rate", "all so far"),
        (rates, "marginal_hit_rate", "those added"),
        (times, "p50_ttft_ms", "median"),
        (times, "p95_ttft_ms", "95th percentile"),
    )
    if len(frame):
        for number, (axes, column, name) in enumerate(lines):
            axes.plot(frame.first_requests, frame[column], marker=MARKERS[number], color=COLOURS[number], label=name)
        times.set_xscale("log", base=2)
    rates.set_ylim(0, 1)
    label(rates, x="", y="hit rate")
    label(times, x="requests", y="time to first token (ms)")
    legend(rates)
    legend(times)
    return figure
