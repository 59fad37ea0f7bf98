"""The kernels that take the most GPU time."""

from __future__ import annotations

from kvtrace.queries.marks import floats, name_rows, records, set_height
from kvtrace.queries.plotting import CATEGORIES, Figure, Frame, label, new_figure

MOST = 20


def plot(frame: Frame) -> Figure:
    """A bar a kernel, coloured by category; the rest is in the source line."""
    rest = floats(frame.total_ms.iloc[MOST:]).sum()
    figure = new_figure(
        "Kernels by GPU time", source=f"gpu_activity; {max(0, len(frame) - MOST)} more kernels took {rest:,.1f} ms"
    )
    if frame.empty:
        return figure
    axes = figure.axes[0]
    top = frame.head(MOST)
    several = frame.device.nunique() > 1
    for place, row in enumerate(records(top)):
        axes.barh(len(top) - 1 - place, row.total_ms, color=CATEGORIES.get(str(row.category), "0.7"))
        axes.text(row.total_ms, len(top) - 1 - place, f" {row.share:.1%}, {row.kernels:,}x", va="center", fontsize=7)
    for category in dict.fromkeys(top.category.astype(str)):
        axes.barh(0, 0, color=CATEGORIES.get(category, "0.7"), label=category)
    name_rows(axes, [f"GPU {row.device}: {row.name}" if several else str(row.name) for row in records(top)])
    axes.margins(x=0.2)
    label(axes, x="sum of durations (ms)", y="kernel")
    axes.legend(title="by its name", fontsize=8, title_fontsize=8, frameon=False, loc="lower right")
    set_height(figure, len(top))
    return figure
