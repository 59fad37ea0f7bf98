"""Time to first token and hit rate of prompts with a shared prefix and of unique ones, by prompt length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plots.cold_warm import draw
from kvtrace.queries.plotting import new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """Bars: above the median and 95th percentile of the time to first token, below the hit rate."""
    figure = new_figure("Shared and unique prompts", source="request, first_block", rows=2)
    lengths = frame.at_least_tokens.astype(str) + "+ tokens"
    names = frame.prompts + (", " + lengths if frame.at_least_tokens.nunique() > 1 else "")
    draw(figure, frame, names, "prompts")
    return figure
