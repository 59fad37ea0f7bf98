"""Time to first token and hit rate of prompts with a shared prefix and of unique ones, by prompt length."""

from __future__ import annotations

from kvtrace.queries.plots.cold_warm import draw
from kvtrace.queries.plotting import Figure, Frame, new_figure


def plot(frame: Frame) -> Figure:
    """Bars: above the median and 95th percentile of the time to first token, below the hit rate."""
    figure = new_figure("Shared and unique prompts", source="request, first_block", rows=2)
    lengths = frame.at_least_tokens.astype(str) + "+ tokens"
    names = frame.prompts + (", " + lengths if frame.at_least_tokens.nunique() > 1 else "")
    draw(figure, frame, names, "prompts")
    return figure
