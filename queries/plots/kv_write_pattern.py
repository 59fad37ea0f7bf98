"""Blocks that a layer writes, over time: a panel a forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plots._passes import draw_passes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """A line a block, from the first token stored in it to the last."""
    layer = f" in layer {frame['layer'].iloc[0]}" if len(frame) else ""
    return draw_passes(
        frame,
        {"K and V written": ("start_ms", "end_ms")},
        title=f"KV blocks written over time{layer}",
        source="gpu_write; the time axis is broken between forward passes",
        nothing="no write",
    )
