"""The lines fitted through the steps' wall times, over the tokens they hold for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, label, legend, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """One line a fit, from its fewest to its most tokens; the legend says how good it is."""
    figure = new_figure("Step duration against tokens", source="step: least-squares fits")
    axes = figure.axes[0]
    fits = frame[frame.slope_us_per_token.notna()]
    for number, (_, fit) in enumerate(fits.iterrows()):
        name = f"{fit.composition}, n={fit.steps}, R²={fit.r2:.2f}"
        if frame.engine_id.nunique() > 1:
            name = f"engine {fit.engine_id}: {name}"
        ends = fit[["min_tokens", "max_tokens"]].astype(float)
        times = fit.intercept_ms + fit.slope_us_per_token / 1e3 * ends
        axes.plot(ends, times, color=COLOURS[number % len(COLOURS)], label=name)
    label(axes, x="tokens of the step", y="wall time (ms)")
    legend(axes)
    return figure
