"""An experiment's phases in the order they were run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, label, legend, new_figure, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """Bars: above the median and 95th percentile of the time to first token, below the hit rate."""
    figure = new_figure("Phases, in order", source="request: by session tag, without each phase's warm-up", rows=2)
    times, rates = figure.axes
    if len(frame):
        left, right = frame.phase_order - 0.2, frame.phase_order + 0.2
        times.bar(left, frame.p50_ttft_ms, width=0.4, color=COLOURS[0], label="median")
        times.bar(right, frame.p95_ttft_ms, width=0.4, color=COLOURS[1], label="95th percentile")
        rates.bar(frame.phase_order, frame.hit_rate, width=0.6, color=COLOURS[2])
        rates.set_xticks(frame.phase_order, [plain(phase) for phase in frame.phase.fillna("no tag")])
    label(times, x="", y="time to first token (ms)")
    label(rates, x="phase", y="hit rate")
    rates.set_ylim(0, 1)
    legend(times)
    return figure
