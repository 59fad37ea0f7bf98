"""Stored and wasted slots by allocator: one axis an engine."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Bars that add up to what each allocator reserves, with the share it wastes."""
    engines = sorted(frame.engine_id.unique())
    figure = new_figure(
        "KV memory by allocator, the same requests",
        source="recorded: this run; the others derived, without sharing",
        rows=max(1, len(engines)),
    )
    for axes, engine in zip(figure.axes, engines, strict=False):
        rows = frame[frame.engine_id == engine].iloc[::-1]
        names = [
            f"{name}, blocks of {size:.0f}" if size > 0 else name.replace("_", " ")
            for name, size in zip(rows.allocator, rows.block_size_tokens.astype(float), strict=True)
        ]
        axes.barh(names, rows.stored_tokens, label="stored", color=COLOURS[0])
        axes.barh(names, rows.wasted_tokens, left=rows.stored_tokens, label="wasted", color=COLOURS[3], hatch="//")
        for place, (reserved, share) in enumerate(zip(rows.reserved_tokens, rows.wasted_share, strict=True)):
            axes.annotate(f" {100 * share:.1f}%", (reserved, place), va="center", fontsize=7)
        axes.tick_params(axis="y", labelsize=7)
        label(axes, x="mean slots reserved (tokens)", y="allocator" if len(engines) == 1 else f"engine {engine}")
        legend(axes)
    return figure
