"""Time that blocks were held, by what held them."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, floats, name_rows, records, set_height
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """A bar a holder; those that no running request used are set off by colour."""
    figure = new_figure("What held the blocks", source="block_event, pin; each block's time goes to one holder")
    if frame.empty:
        return figure
    axes = figure.axes[0]
    prefix = engine_prefix(frame)
    values = floats(frame.block_seconds)
    for in_use, colour, name in ((True, COLOURS[0], "running requests"), (False, COLOURS[3], "no running request")):
        chosen = frame.in_use.astype(bool).to_numpy() == in_use
        places = [len(frame) - 1 - place for place in range(len(frame)) if chosen[place]]
        if places:
            axes.barh(places, values[chosen], color=colour, label=name)
    for place, (value, share) in enumerate(zip(values, floats(frame.share), strict=True)):
        axes.text(value, len(frame) - 1 - place, f" {share:.2%}", va="center", fontsize=8)
    name_rows(axes, [f"{prefix(row.engine_id)}{row.held_by}" for row in records(frame)])
    axes.margins(x=0.12)
    label(axes, x="time held (block-s)", y="held by")
    legend(axes, "used by")
    set_height(figure, len(frame))
    return figure
