"""Bytes a second moved to and from offload tiers over time."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Above the rate by engine and direction, below the share of time in which anything was under way."""
    figure = new_figure("Offload bandwidth", source="transfer: bytes spread over each transfer's time", rows=2)
    rate, busy = figure.axes
    for number, ((engine, direction), rows) in enumerate(frame.groupby(["engine_id", "direction"], observed=True)):
        seconds = (rows.time_ns - frame.time_ns.min()) / 1e9
        colour = COLOURS[number % len(COLOURS)]
        name = direction if frame.engine_id.nunique() == 1 else f"{direction}, engine {engine}"
        rate.step(seconds, rows.bytes_per_s / 1e9, where="post", color=colour, label=name)
        busy.step(seconds, rows.under_way_share, where="post", color=colour)
    label(rate, x="", y="rate (GB/s)")
    label(busy, x="time (s)", y="share of time under way")
    busy.set_ylim(0, 1.05)
    legend(rate)
    return figure
