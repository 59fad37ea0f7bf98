"""An experiment's phases in the order they were run."""

from __future__ import annotations

from kvtrace.queries.plots.cold_warm import draw
from kvtrace.queries.plotting import Figure, Frame, new_figure


def plot(frame: Frame) -> Figure:
    """Bars: above the median and 95th percentile of the time to first token, below the hit rate."""
    figure = new_figure("Phases, in order", source="request: by session tag, without each phase's warm-up", rows=2)
    draw(figure, frame, frame.phase.fillna("no tag"), "phase")
    return figure
