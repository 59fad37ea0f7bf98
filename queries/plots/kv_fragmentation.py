"""Slots allocated and stored over time, and the share that is wasted: two axes an engine."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Above what is allocated and holds tokens, below the waste between them."""
    engines = sorted(frame.engine_id.unique())
    sizes = ", ".join(str(size) for size in sorted(frame.block_size_tokens.dropna().unique()))
    title = f"Internal fragmentation, blocks of {sizes} tokens" if sizes else "Internal fragmentation"
    figure = new_figure(title, source="step_schedule, step_request", rows=2 * max(1, len(engines)))
    for number, engine in enumerate(engines):
        above, below = figure.axes[2 * number : 2 * number + 2]
        rows = frame[frame.engine_id == engine]
        seconds = (rows.time_ns - frame.time_ns.min()) / 1e9
        above.step(seconds, rows.allocated_tokens, where="post", label="allocated", color=COLOURS[0])
        above.step(seconds, rows.stored_tokens.astype(float), where="post", label="stored", color=COLOURS[1])
        below.step(seconds, 100 * rows.wasted_share.astype(float), where="post", label="wasted", color=COLOURS[3])
        name = "" if len(engines) == 1 else f"engine {engine}: "
        label(above, x="", y=f"{name}slots (tokens)")
        label(below, x="time (s)", y=f"{name}wasted (%)")
        below.set_ylim(bottom=0)
        legend(above)
    return figure
