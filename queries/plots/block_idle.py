"""Time of a block: touched, idle within a pass, idle between passes; one bar a worker and layer."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure

_PARTS = {
    "touched_block_seconds": ("touched", COLOURS[0], ""),
    "idle_within_block_seconds": ("idle within a pass", COLOURS[4], "//"),
    "idle_between_block_seconds": ("idle between passes", COLOURS[1], ".."),
}


def plot(frame: Frame) -> Figure:
    """Without GPU windows, what is not between passes is drawn as one part."""
    workers = sorted(frame.process_id.unique())
    figure = new_figure("Idle time of blocks", source="kv_window or forward, step_request", rows=max(1, len(workers)))
    for axes, worker in zip(figure.axes, workers, strict=False):
        rows = frame[(frame.process_id == worker) & frame.held_block_seconds.notna()]
        names = [f"{layer:.0f}" if layer >= 0 else "any layer" for layer in rows.layer.astype(float)]
        held = rows.held_block_seconds.astype(float)
        below = 0 * held
        for column, (name, colour, hatch) in _PARTS.items():
            share = 100 * rows[column].astype(float).fillna(0) / held
            axes.bar(names, share, bottom=below, label=name, color=colour, hatch=hatch)
            below = below + share
        if len(rows) and (below < 99).any():
            axes.bar(names, 100 - below, bottom=below, label="in a pass, not known", color="0.85")
        axes.tick_params(axis="x", labelsize=7)
        label(axes, x="layer", y="of the time held (%)" if len(workers) == 1 else f"worker {worker}: time held (%)")
        legend(axes)
    return figure
