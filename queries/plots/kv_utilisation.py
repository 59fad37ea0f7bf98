"""Blocks in use, cached but free, and empty, over time: one axis an engine."""

from __future__ import annotations

from kvtrace.queries.marks import floats, means, of_runs, run_length, seconds_from
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Stacked areas that add up to the pool."""
    engines = sorted(frame.engine_id.unique())
    longest = run_length(int(frame.engine_id.value_counts().max())) if engines else 1
    source = "step_schedule, block_event" + of_runs(longest)
    figure = new_figure("GPU KV cache over time", source=source, rows=max(1, len(engines)))
    for axes, engine in zip(figure.axes, engines, strict=False):
        rows = frame[frame.engine_id == engine]
        axes.stackplot(
            *means(
                seconds_from(rows.time_ns, int(frame.time_ns.min())),
                floats(rows.used_blocks),
                floats(rows.cached_free_blocks.fillna(0)),
                floats(rows.empty_free_blocks.fillna(rows.blocks - rows.used_blocks)),
            ),
            labels=["in use", "free, cached", "free, empty"],
            colors=[COLOURS[0], COLOURS[4], "0.88"],
            step="post",
        )
        label(axes, x="time (s)", y="blocks" if len(engines) == 1 else f"engine {engine}: blocks")
        legend(axes)
    return figure
