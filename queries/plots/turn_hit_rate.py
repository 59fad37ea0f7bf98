"""Source of the prompt of a job's first, second, ... turn."""

from __future__ import annotations

from kvtrace.queries.marks import stack_bars
from kvtrace.queries.plotting import Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Stacked shares, one bar a turn."""
    figure = new_figure("Prefix-cache hits by turn", source="job_turn, prefix_lookup: first admissions")
    axes = figure.axes[0]
    rates = {"on the GPU": frame.local_hit_rate, "by a connector": frame.external_hit_rate}
    stack_bars(axes, list(frame.turn_number), rates)
    axes.set_ylim(0, 1)
    label(axes, x="turn of the job", y="hit rate (tokens over tokens)")
    legend(axes)
    return figure
