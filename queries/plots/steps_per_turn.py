"""Scheduler steps a turn took, by what they computed, against the fewest possible."""

from __future__ import annotations

from kvtrace.queries.marks import stack_bars
from kvtrace.queries.plotting import Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Stacked means, one bar a turn; a line at the minimum."""
    figure = new_figure("Steps per turn", source="job_turn, step_request: completed turns")
    axes = figure.axes[0]
    parts = {
        "decode": frame.mean_decode_steps,
        "prefill": frame.mean_prefill_steps,
        "resumed": frame.mean_resumed_steps,
        "sat out": frame.mean_sat_out_steps,
    }
    stack_bars(axes, list(frame.turn_number), parts)
    if len(frame):
        places = range(len(frame))
        axes.hlines(
            frame.mean_min_steps, [i - 0.42 for i in places], [i + 0.42 for i in places], color="black", label="fewest"
        )
    label(axes, x="turn of the job", y="steps (mean)")
    legend(axes)
    return figure
