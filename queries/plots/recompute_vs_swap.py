"""Time to get lost KV back against what it may depend on."""

from __future__ import annotations

from kvtrace.queries.marks import floats, log_if_wide
from kvtrace.queries.plotting import COLOURS, MARKERS, Figure, Frame, label, legend, new_figure

DIMENSIONS = {
    "lost_tokens": "lost (tokens)",
    "sequence_tokens": "sequence (tokens)",
    "running_requests": "running (requests)",
    "free_share": "free share of the pool (ratio)",
}


def plot(frame: Frame) -> Figure:
    """An axis a dimension, a line a cause and strategy: mean overhead by bucket; dashed: modelled recomputation."""
    figure = new_figure(
        "Time until lost KV is back",
        source="prefix_miss; dashed: price by the cost model",
        rows=2,
        columns=2,
        share_x=False,
    )
    if frame.empty:
        return figure
    kinds = sorted(set(zip(frame.cause, frame.strategy, strict=True)))
    for axes, (dimension, name) in zip(figure.axes, DIMENSIONS.items(), strict=True):
        for number, (cause, strategy) in enumerate(kinds):
            rows = frame[(frame.dimension == dimension) & (frame.cause == cause) & (frame.strategy == strategy)]
            rows = rows.groupby("at_least", as_index=False).mean(numeric_only=True)
            if rows.empty:
                continue
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            where, name_of = (floats(rows.at_least) + floats(rows.below)) / 2, f"{strategy},\n{cause}"
            overheads, prices = floats(rows.mean_overhead_ms), floats(rows.mean_recompute_ms)
            axes.plot(where, overheads, color=colour, marker=marker, markersize=4, label=name_of)
            axes.plot(where, prices, color=colour, linestyle="--", linewidth=0.9)
        log_if_wide(axes, floats(frame[frame.dimension == dimension].below))
        axes.set_ylim(bottom=0)
        label(axes, x=name, y="ms")
    legend(figure.axes[1])
    return figure
