"""The fitted lines of step time over scheduled tokens."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, floats, log_if_wide, records
from kvtrace.queries.plotting import COLOURS, MARKERS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """A line a fit, over the tokens that it saw; the mark is its mean step. Query step-residuals draws the steps."""
    import numpy as np

    figure = new_figure("Step time by scheduled tokens: the fits", source="step_schedule, step_update; least squares")
    frame = frame[frame.slope_us_per_token.notna()]
    if frame.empty:
        return figure
    axes = figure.axes[0]
    prefix = engine_prefix(frame)
    for number, fit in enumerate(records(frame)):
        colour = COLOURS[number % len(COLOURS)]
        tokens = np.geomspace(max(fit.min_tokens, 1), max(fit.max_tokens, 1), 60)
        axes.plot(
            tokens,
            fit.intercept_ms + tokens * fit.slope_us_per_token / 1e3,
            color=colour,
            label=f"{prefix(fit.engine_id)}{fit.composition}: {fit.intercept_ms:.3g} ms + "
            f"{fit.slope_us_per_token:.3g} us/token\n(R² {fit.r2:.3f}, {fit.steps:,} steps)",
        )
        axes.plot(fit.mean_tokens, fit.mean_ms, MARKERS[number % len(MARKERS)], color=colour)
    log_if_wide(axes, [*floats(frame.min_tokens), *floats(frame.max_tokens)])
    axes.set_ylim(bottom=0)
    label(axes, x="scheduled in a step (tokens)", y="step time (ms)")
    legend(axes)
    return figure
