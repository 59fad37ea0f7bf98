"""Shares of the phases in what is written to and read from KV."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, floats, name_rows, set_height
from kvtrace.queries.plotting import PHASES, Figure, Frame, label, legend, new_figure

NAMES = {"prefill": "prefill", "chunked_prefill": "chunked", "decode": "decode", "resumed": "resumed"}
"""Phases and their names in `PHASES`."""


def plot(frame: Frame) -> Figure:
    """Two stacked bars an engine, from 0 to 1."""
    figure = new_figure("Who writes KV, and who reads it", source="step_request, counted in each layer alike")
    if frame.empty:
        return figure
    axes = figure.axes[0]
    prefix = engine_prefix(frame)
    bars = [(engine, column) for engine in frame.engine_id.unique() for column in ("write_share", "read_share")]
    ends = [0.0] * len(bars)
    for phase, name in NAMES.items():
        for place, (engine, column) in enumerate(bars):
            share = float(floats(frame[(frame.engine_id == engine) & (frame.phase == phase)][column]).sum())
            top = len(bars) - 1 - place
            axes.barh(top, share, left=ends[place], color=PHASES[name], label=phase if place == 0 else None)
            if share >= 0.05:
                axes.text(ends[place] + share / 2, top, f"{share:.0%}", ha="center", va="center", fontsize=8)
            ends[place] += share
    sums = {engine: (rows.written_tokens.sum(), rows.read_blocks.sum()) for engine, rows in frame.groupby("engine_id")}
    name_rows(
        axes,
        [
            f"{prefix(engine)}{sums[engine][0]:,} tokens written"
            if column == "write_share"
            else f"{prefix(engine)}{sums[engine][1]:,} blocks read"
            for engine, column in bars
        ],
    )
    axes.set_xlim(0, 1)
    label(axes, x="share", y="each layer")
    legend(axes)
    set_height(figure, len(bars) + 2)
    return figure
