"""Time to first token and hit rate of cold and warm prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, label, legend, new_figure, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """Bars: above the median and 95th percentile of the time to first token, below the hit rate."""
    figure = new_figure("Cold and warm prompts", source="request, first_block", rows=2)
    times, rates = figure.axes
    if len(frame):
        places = range(len(frame))
        left, right = [i - 0.2 for i in places], [i + 0.2 for i in places]
        times.bar(left, frame.p50_ttft_ms, width=0.4, color=COLOURS[0], label="median")
        times.bar(right, frame.p95_ttft_ms, width=0.4, color=COLOURS[1], label="95th percentile")
        rates.bar(places, frame.hit_rate, width=0.6, color=COLOURS[2])
        names = zip(frame.prompts, frame.requests, strict=True)
        rates.set_xticks(places, [f"{plain(prompts)}\n{requests} requests" for prompts, requests in names])
    label(times, x="", y="time to first token (ms)")
    label(rates, x="prompts", y="hit rate")
    rates.set_ylim(0, 1)
    legend(times)
    return figure
