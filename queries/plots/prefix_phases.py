"""An experiment's phases in the order they were run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plots.cold_warm import draw
from kvtrace.queries.plotting import new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """Bars: above the median and 95th percentile of the time to first token, below the hit rate."""
    figure = new_figure("Phases, in order", source="request: by session tag, without each phase's warm-up", rows=2)
    draw(figure, frame, frame.phase.fillna("no tag"), "phase")
    return figure
