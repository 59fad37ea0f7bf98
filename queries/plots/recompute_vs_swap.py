"""What getting lost KV back takes, by what the engine did: one axis a dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, MARKERS, label, legend, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DIMENSIONS = {
    "lost_tokens": "tokens lost",
    "sequence_tokens": "sequence length (tokens)",
    "running_requests": "running requests",
    "free_share": "free share of the pool",
}


def plot(frame: pd.DataFrame) -> Figure:
    """Mean overhead of each bucket at its lower bound; a line a strategy, cause, model and block size."""
    figure = new_figure(
        "Getting lost KV back", source="prefix_miss, step_request, step_update", rows=2, columns=2, share_x=False
    )
    keys = ["strategy", "cause", "model", "block_size_tokens"]
    several = [key for key in keys if frame[key].nunique() > 1 or key == "strategy"]
    names = sorted({tuple(row) for row in frame[several].astype(str).itertuples(index=False)})
    for axes, (dimension, text) in zip(figure.axes, _DIMENSIONS.items(), strict=True):
        for number, name in enumerate(names):
            mine = (frame[several].astype(str) == list(name)).all(axis=1) & (frame.dimension == dimension)
            rows = frame[mine].sort_values("at_least")
            if len(rows):
                axes.plot(
                    rows.at_least,
                    rows.mean_overhead_ms.astype(float),
                    marker=MARKERS[number % len(MARKERS)],
                    color=COLOURS[number % len(COLOURS)],
                    markersize=4,
                    label=", ".join(name),
                )
        label(axes, x=text, y="overhead (ms)")
    legend(figure.axes[1])
    return figure
