"""Blocks that a layer reads, over time: a panel a forward pass, K above and V below."""

from __future__ import annotations

from kvtrace.queries.plots._passes import draw_passes
from kvtrace.queries.plotting import Figure, Frame


def plot(frame: Frame) -> Figure:
    """A line a block and program."""
    layer = f" in layer {frame['layer'].iloc[0]}" if len(frame) else ""
    head = f", KV head {int(frame['head'].iloc[-1])}" if len(frame) and frame["head"].notna().any() else ""
    return draw_passes(
        frame,
        {"K": ("k_start_ms", "k_end_ms"), "V": ("v_start_ms", "v_end_ms")},
        title=f"KV blocks read over time{layer}{head}",
        source="gpu_tile, gpu_program; the time axis is broken between forward passes",
        nothing="no read",
    )
