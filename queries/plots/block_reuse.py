"""Time that cached blocks wait for their next use, and blocks allocated in between."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, floats, log_if_wide, ranges, records, set_height
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, new_figure


def plot(frame: Frame) -> Figure:
    """Thick: the 10th to the 90th percentile; dot: median; thin: up to the largest."""
    figure = new_figure(
        "Distance of a block's reuse",
        source="block_event; bars: 10th to 90th percentile, dots: median, lines: to the largest",
        columns=2,
        share_x=False,
    )
    if frame.empty:
        return figure
    prefix = engine_prefix(frame)
    labels = [f"{prefix(row.engine_id)}{row.kind} ({row.hits:,})" for row in records(frame)]
    for axes, unit, name, colour in zip(
        figure.axes,
        ("ms", "allocated_blocks"),
        ("time (ms)", "allocated in between (blocks)"),
        COLOURS[::2],
        strict=False,
    ):
        spans = [floats(frame[f"{quantile}_{unit}"]) for quantile in ("p10", "p50", "p90", "max")]
        ranges(axes, labels, list(zip(*spans, strict=True)), colour)
        log_if_wide(axes, [*spans[0], *spans[3]])
        label(axes, x=name, y="kind (hits)" if unit == "ms" else "")
    figure.axes[1].set_yticklabels([])
    set_height(figure, len(frame))
    return figure
