"""Rate and duration of transfers between tiers."""

from __future__ import annotations

from kvtrace.queries.marks import floats, log_if_wide, ranges, records, set_height
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, new_figure


def plot(frame: Frame) -> Figure:
    """A bar a connector, direction and pair of tiers. Bandwidth: 1st to 99th percentile; time: median to 99th."""
    figure = new_figure(
        "Transfers between tiers",
        source="transfer_submit, transfer_end; bandwidth: p1 to p99, time: median to p99, dots: median",
        columns=2,
        share_x=False,
    )
    frame = frame[frame.p50_total_ms.notna() | frame.p50_gb_per_s.notna()]
    if frame.empty:
        return figure
    speeds, times = figure.axes
    labels = [
        f"{row.direction} {row.from_tier} to {row.to_tier} ({row.transfers:,}; {row.timed_by})"
        for row in records(frame)
    ]
    spans = [floats(frame[f"{name}_gb_per_s"]) for name in ("p01", "p50", "p99", "p99")]
    ranges(speeds, labels, list(zip(*spans, strict=True)))
    label(speeds, x="bandwidth (GB/s)", y="transfers")
    waits = [floats(frame[f"{name}_total_ms"]) for name in ("p50", "p50", "p99", "p99")]
    ranges(times, labels, list(zip(*waits, strict=True)), COLOURS[2])
    log_if_wide(times, [*waits[0], *waits[2]])
    times.set_yticklabels([])
    label(times, x="until known to be done (ms)", y="")
    set_height(figure, len(frame))
    return figure
