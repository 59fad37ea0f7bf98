"""Each job's completion time: turns in the engine, and the gaps between."""

from __future__ import annotations

from kvtrace.queries.marks import stack_bars
from kvtrace.queries.plotting import Figure, Frame, label, legend, new_figure

NAMED_JOBS = 24
"""Up to so many bars get their job's name."""


def plot(frame: Frame) -> Figure:
    """Stacked seconds, one bar a job, in order of arrival."""
    figure = new_figure("Job completion time", source="request: requests of one session tag; jobs that ended")
    axes = figure.axes[0]
    ended = frame[frame.jct_ms.notna()]
    stack_bars(axes, list(ended.session), {"turns": ended.turn_ms / 1e3, "gaps (tools)": ended.gap_ms / 1e3})
    if len(ended) > NAMED_JOBS:
        axes.set_xticks([])
    axes.tick_params(axis="x", rotation=60, labelsize=8)
    label(axes, x="job, in order of arrival", y="time (s)")
    legend(axes)
    return figure
