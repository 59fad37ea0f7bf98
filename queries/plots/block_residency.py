"""Time that content stays in blocks, and blocks allocated meanwhile, by kind of stay."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, floats, log_if_wide, ranges, records, set_height
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, new_figure


def plot(frame: Frame) -> Figure:
    """Thick: 10th to 90th percentile (of blocks: from the median); dot: median; thin: up to the largest."""
    figure = new_figure(
        "How long content stays in a block",
        source="block_event; bars: 10th (of blocks: 50th) to 90th percentile, dots: median, lines: to the largest",
        columns=2,
        share_x=False,
    )
    if frame.empty:
        return figure
    times, blocks = figure.axes
    prefix = engine_prefix(frame)
    labels = [f"{prefix(row.engine_id)}{row.kind} ({row.stays:,})" for row in records(frame)]
    ranges(
        times, labels, list(zip(*(floats(frame[f"{name}_ms"]) for name in ("p10", "p50", "p90", "max")), strict=True))
    )
    log_if_wide(times, [*floats(frame.p10_ms), *floats(frame.max_ms)])
    label(times, x="time (ms)", y="kind (stays)")
    spans = zip(*(floats(frame[f"{name}_allocated_blocks"]) for name in ("p50", "p50", "p90", "max")), strict=True)
    ranges(blocks, labels, list(spans), COLOURS[2])
    blocks.set_yticklabels([])
    log_if_wide(blocks, [*floats(frame.p50_allocated_blocks), *floats(frame.max_allocated_blocks)])
    label(blocks, x="allocated meanwhile (blocks)", y="")
    set_height(figure, len(frame))
    return figure
