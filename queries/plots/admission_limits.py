"""What kept the head of the waiting queue waiting: shares of steps and of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, label, legend, new_figure, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """Two bars a reason, one axis an engine."""
    engines = sorted(frame.engine_id.unique())
    figure = new_figure("Admission limits (inferred)", source="step_schedule", rows=max(1, len(engines)))
    for axes, engine in zip(figure.axes, engines, strict=False):
        rows = frame[frame.engine_id == engine]
        places = range(len(rows))
        axes.bar([i - 0.2 for i in places], rows.step_share, width=0.4, color=COLOURS[0], label="of steps")
        axes.bar([i + 0.2 for i in places], rows.wall_share, width=0.4, color=COLOURS[1], label="of time in steps")
        reasons = rows.admission_limit.astype(object).fillna("not recorded")
        axes.set_xticks(places, [plain(reason) for reason in reasons])
        axes.tick_params(axis="x", rotation=15)
        label(axes, x="reason", y="share" if len(engines) == 1 else f"engine {engine}: share")
        legend(axes)
    return figure
