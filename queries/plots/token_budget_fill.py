"""Fill of the token budget over forward passes, by what was batched: one axis an engine."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, MARKERS, PHASES, Figure, Frame, label, legend, new_figure

_BATCHES = {"prefill": PHASES["prefill"], "mixed": COLOURS[2], "decode": PHASES["decode"]}


def plot(frame: Frame) -> Figure:
    """A mark a forward pass."""
    engines = sorted(frame.engine_id.unique())
    figure = new_figure("Fill of the token budget", source="step_schedule", rows=max(1, len(engines)))
    for axes, engine in zip(figure.axes, engines, strict=False):
        for (batch, colour), marker in zip(_BATCHES.items(), MARKERS, strict=False):
            rows = frame[(frame.engine_id == engine) & (frame.batch == batch)]
            if len(rows):
                axes.scatter(rows.step, 100 * rows.filled_share, s=9, color=colour, marker=marker, label=batch)
        axes.set_ylim(0, 105)
        label(axes, x="step", y="of the budget (%)" if len(engines) == 1 else f"engine {engine}: of the budget (%)")
        legend(axes, "batch")
    return figure
