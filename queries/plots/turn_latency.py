"""A turn's latency by its place in the job, and what it was spent on."""

from __future__ import annotations

from kvtrace.queries.marks import stack_bars
from kvtrace.queries.plotting import MARKERS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Stacked means, one bar a turn; a mark at the 95th percentile."""
    figure = new_figure("Turn latency", source="request: completed turns")
    axes = figure.axes[0]
    parts = {"queue": frame.mean_queue_ms, "prefill": frame.mean_prefill_ms, "decode": frame.mean_decode_ms}
    stack_bars(axes, list(frame.turn_number), parts)
    if len(frame):
        axes.plot(range(len(frame)), frame.p95_ms, MARKERS[0], color="black", label="95th percentile")
    label(axes, x="turn of the job", y="latency (ms, mean)")
    legend(axes)
    return figure
