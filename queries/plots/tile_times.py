"""Waiting for a tile's K and from there to its V, by layer."""

from __future__ import annotations

from kvtrace.queries.marks import floats
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Medians as lines, the 99th percentiles dashed; one pair of axes, a worker a colour."""
    figure = new_figure("Times of tiles in attention programs", source="gpu_tile; ticks of 32 ns", rows=2)
    for number, (worker, rows) in enumerate(frame.groupby("process_id")):
        for axes, what, name in zip(figure.axes, ("to_k", "k_to_v"), ("to a tile's K", "from K to V"), strict=True):
            for quantile, line in (("p50", "-"), ("p99", "--")):
                axes.plot(
                    floats(rows.layer),
                    floats(rows[f"{quantile}_{what}"]),
                    line,
                    marker=".",
                    color=COLOURS[number % len(COLOURS)],
                    label=f"worker {worker}, {quantile}",
                )
            axes.set_ylim(bottom=0)
            label(axes, x="layer" if what == "k_to_v" else "", y=f"{name} (ns)")
    legend(figure.axes[0])
    return figure
