"""The cost of evictions, and how much of it keeping blocks longer would have saved."""

from __future__ import annotations

from kvtrace.queries.marks import floats, log_if_wide
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, new_figure


def plot(frame: Frame) -> Figure:
    """Regretted evictions by how much longer the block was to be kept: what was lost, and its sum up to there."""
    figure = new_figure("Prefixes evicted and needed again", source="prefix_miss; resets left out", rows=2)
    frame = frame[frame.gone_ms.notna()].sort_values("gone_ms")
    if frame.empty:
        return figure
    single, total = figure.axes
    gone, lost = floats(frame.gone_ms), floats(frame.lost_tokens)
    single.scatter(gone, lost, s=22, color=COLOURS[0], alpha=0.8)
    label(single, x="", y="lost (tokens)")
    total.step([0, *gone], [0, *lost.cumsum()], where="post", color=COLOURS[3])
    total.scatter(gone, lost.cumsum(), s=10, color=COLOURS[3])
    label(total, x="needed again after its eviction (ms)", y="lost up to there\n(tokens)")
    log_if_wide(total, gone)
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
    return figure
