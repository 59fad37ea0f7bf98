"""The fitted cost of computing a prefix of n tokens."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, records
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure, plain

LONGEST_TOKENS = 4096


def plot(frame: Frame) -> Figure:
    """A curve a fit: the one that gives this trace its prices is thick. A fit without a slope has no curve."""
    import numpy as np

    figure = new_figure("Modelled price of computing a prefix", source="cost_model; without a step's intercept")
    axes = figure.axes[0]
    prefix = engine_prefix(frame)
    tokens = np.linspace(0, LONGEST_TOKENS, 200)
    for number, fit in enumerate(records(frame[frame.us_per_token.notna()])):
        # us_per_1k_context is what 1000 tokens of context add to one token: ns for each token of context.
        price_ns = tokens * fit.us_per_token * 1e3 + tokens * (tokens + 1) / 2 * (fit.us_per_1k_context or 0)
        axes.plot(
            tokens,
            price_ns / 1e6,
            color=COLOURS[number % len(COLOURS)],
            linewidth=2.4 if fit.used else 1,
            linestyle="-" if fit.used else "--",
            label=f"{prefix(fit.engine_id)}{plain(fit.composition)}, R² {fit.r2:.2f}{', in use' if fit.used else ''}",
        )
        label(axes, x="tokens of a prefix from its start (tokens)", y="price (ms)")
    legend(axes, "fit over steps")
    return figure
