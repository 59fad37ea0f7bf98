"""Shares of steps and of wall time by what kept the queue's head waiting: two bars an engine."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, floats, name_rows, set_height
from kvtrace.queries.plotting import LIMITS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Stacked bars from 0 to 1; reasons with less than 5% have no number."""
    figure = new_figure("What kept the head of the queue waiting", source="step_schedule; the reason is inferred")
    if frame.empty:
        return figure
    axes = figure.axes[0]
    prefix = engine_prefix(frame)
    reasons = frame.admission_limit.astype(object).where(frame.admission_limit.notna(), "not recorded").astype(str)
    bars = [(engine, column) for engine in frame.engine_id.unique() for column in ("step_share", "wall_share")]
    ends = [0.0] * len(bars)
    for reason in [name for name in LIMITS if (reasons == name).any()]:
        for place, (engine, column) in enumerate(bars):
            share = float(floats(frame[(frame.engine_id == engine) & (reasons == reason)][column].fillna(0)).sum())
            top = len(bars) - 1 - place
            axes.barh(top, share, left=ends[place], color=LIMITS[reason], label=reason if place == 0 else None)
            if share >= 0.05:
                axes.text(ends[place] + share / 2, top, f"{share:.0%}", ha="center", va="center", fontsize=8)
            ends[place] += share
    name_rows(
        axes, [f"{prefix(engine)}{'steps' if column == 'step_share' else 'wall time'}" for engine, column in bars]
    )
    axes.set_xlim(0, 1)
    label(axes, x="share (ratio)", y="share of")
    legend(axes)
    set_height(figure, len(bars) + 2)
    return figure
