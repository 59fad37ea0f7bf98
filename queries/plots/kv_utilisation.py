"""Blocks in use, cached but free, and empty, over time: one axis an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, label, legend, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """Stacked areas that add up to the pool."""
    engines = sorted(frame.engine_id.unique())
    figure = new_figure("GPU KV cache over time", source="step_schedule, block_event", rows=max(1, len(engines)))
    for axes, engine in zip(figure.axes, engines, strict=False):
        rows = frame[frame.engine_id == engine]
        seconds = (rows.time_ns - frame.time_ns.min()) / 1e9
        axes.stackplot(
            seconds,
            rows.used_blocks.astype(float),
            rows.cached_free_blocks.fillna(0).astype(float),
            rows.empty_free_blocks.fillna(rows.blocks - rows.used_blocks).astype(float),
            labels=["in use", "free, cached", "free, empty"],
            colors=[COLOURS[0], COLOURS[4], "0.88"],
            step="post",
        )
        label(axes, x="time (s)", y="blocks" if len(engines) == 1 else f"engine {engine}: blocks")
        legend(axes)
    return figure
