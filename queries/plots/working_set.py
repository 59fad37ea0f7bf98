"""Different blocks looked up per window and so far, against the pool: one axis an engine."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """The working set of each window in two parts, new blocks above; the footprint and the pool as lines."""
    engines = sorted(frame.engine_id.unique())
    figure = new_figure("Working set of the prefix cache", source="block_lookup", rows=max(1, len(engines)))
    for axes, engine in zip(figure.axes, engines, strict=False):
        rows = frame[frame.engine_id == engine]
        seconds = (rows.time_ns - frame.time_ns.min()) / 1e9
        steps = seconds.diff().dropna()
        width = float(steps.min()) if len(steps) else 1.0
        old = rows.working_set_blocks - rows.new_blocks
        axes.bar(seconds, old, width, align="edge", color=COLOURS[0], label="seen before")
        axes.bar(seconds, rows.new_blocks, width, bottom=old, align="edge", color=COLOURS[4], label="new")
        axes.plot(seconds + width, rows.footprint_blocks, color=COLOURS[1], marker=".", label="all so far")
        if rows.pool_blocks.notna().any():
            axes.axhline(float(rows.pool_blocks.max()), color=COLOURS[3], linestyle="--", label="GPU pool")
        label(axes, x="time (s)", y="blocks" if len(engines) == 1 else f"engine {engine}: blocks")
        legend(axes)
    return figure
