"""Time to get lost KV back against what it may depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, MARKERS, floats, label, legend, log_if_wide, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


DIMENSIONS = {
    "lost_tokens": "lost (tokens)",
    "sequence_tokens": "sequence (tokens)",
    "running_requests": "running (requests)",
    "free_share": "free share of the pool (ratio)",
}


def plot(frame: pd.DataFrame) -> Figure:
    """One axis a dimension, a line a cause and strategy: mean overhead by bucket; dashed, the modelled recomputation."""
    figure = new_figure(
        "Time until lost KV is back", source="prefix_miss; dashed: price by the cost model", rows=2, columns=2, share_x=False
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
            style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
            where = (floats(rows.at_least) + floats(rows.below)) / 2
            axes.plot(where, floats(rows.mean_overhead_ms), label=f"{strategy},\n{cause}", **style)
            axes.plot(where, floats(rows.mean_recompute_ms), linestyle="--", linewidth=0.9, **style | {"marker": ""})
        log_if_wide(axes, floats(frame[frame.dimension == dimension].below))
        axes.set_ylim(bottom=0)
        label(axes, x=name, y="ms")
    legend(figure.axes[1])
    return figure
