"""The miss-ratio curves of `sizing` as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, MARKERS, label, legend, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_POLICIES = {"lru": "LRU", "belady": "Belady's bound"}


def plot(frame: pd.DataFrame) -> Figure:
    """Miss ratio against cache size, LRU and Belady's bound, one axis an engine; what was recorded as a cross.

    Args:
        frame: The answer of `sizing`.
    """
    engines = sorted(frame.engine_id.unique())
    source = "block_lookup, block_event"
    if frame.lru_error.notna().any():
        source += "; sampled, bands are two standard errors"
    figure = new_figure("Miss ratio by cache size", source=source, rows=max(1, len(engines)))
    for axes, engine in zip(figure.axes, engines, strict=False):
        rows = frame[(frame.engine_id == engine) & frame.size_blocks.notna()]
        size = rows.size_blocks.astype(float)
        for (policy, name), colour, marker in zip(_POLICIES.items(), COLOURS, MARKERS, strict=False):
            miss = rows[f"{policy}_miss_ratio"].astype(float)
            axes.plot(size, miss, color=colour, marker=marker, markersize=3, label=name)
            if rows[f"{policy}_error"].notna().all():
                band = 2 * rows[f"{policy}_error"].astype(float)
                axes.fill_between(size, miss - band, miss + band, color=colour, alpha=0.2, linewidth=0)
        recorded = rows[rows.recorded_miss_ratio.notna()]
        if len(recorded):
            axes.plot(
                recorded.size_blocks.astype(float),
                recorded.recorded_miss_ratio.astype(float),
                "x",
                color=COLOURS[3],
                markersize=9,
                markeredgewidth=2,
                label="recorded",
            )
        axes.set_xscale("log")
        axes.set_ylim(0, 1)
        label(axes, x="cache (blocks)", y="miss ratio" if len(engines) == 1 else f"engine {engine}: miss ratio")
        legend(axes)
    return figure
