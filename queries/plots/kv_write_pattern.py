"""Blocks that a layer writes, over time: a panel a forward pass."""

from __future__ import annotations

from kvtrace.queries.plots._passes import draw_passes
from kvtrace.queries.plotting import Figure, Frame


def plot(frame: Frame) -> Figure:
    """A line a block, from the first token stored in it to the last."""
    layer = f" in layer {frame['layer'].iloc[0]}" if len(frame) else ""
    return draw_passes(
        frame,
        {"K and V written": ("start_ms", "end_ms")},
        title=f"KV blocks written over time{layer}",
        source="gpu_write; the time axis is broken between forward passes",
        nothing="no write",
    )
