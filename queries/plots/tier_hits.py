"""Blocks that each offload tier took in, served and gave up."""

from __future__ import annotations

from kvtrace.queries.marks import floats, name_rows, records, set_height, shorten
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure, plain

COUNTS = {
    "stored_blocks": ("stored", COLOURS[0]),
    "hit_blocks": ("hit", COLOURS[2]),
    "evicted_blocks": ("evicted", COLOURS[1]),
    "unused_blocks": ("evicted, never hit", COLOURS[5]),
    "thrashed_blocks": ("evicted, stored again", COLOURS[3]),
}


def plot(frame: Frame) -> Figure:
    """Bars side by side, a group an engine, connector and tier; stretches of time are added up."""
    import pandas as pd

    figure = new_figure("Offload tiers", source="tier_block")
    if frame.empty:
        return figure
    axes = figure.axes[0]
    keys = ["engine_id", "connector", "tier"]
    groups = frame.groupby(keys, observed=True, sort=False)[list(COUNTS)].sum().reset_index()
    height = 0.8 / len(COUNTS)
    for number, (column, (name, colour)) in enumerate(COUNTS.items()):
        places = [len(groups) - 1 - place + (2 - number) * height for place in range(len(groups))]
        bars = axes.barh(places, floats(groups[column]), height, color=colour, label=name)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7, padding=2)
    peaks = frame.groupby(keys, observed=True, sort=False).max_occupied_blocks.max().to_list()
    rooms = frame.groupby(keys, observed=True, sort=False).capacity_blocks.max().to_list()
    names = [
        plain(shorten(f"{row.connector}, {row.tier}"))
        + f"\nat most {peak:,} of {f'{int(room):,}' if pd.notna(room) else '?'}"
        for row, peak, room in zip(records(groups), peaks, rooms, strict=True)
    ]
    name_rows(axes, [""] * len(names))
    axes.set_yticks(range(len(names) - 1, -1, -1), names, fontsize=8)
    label(axes, x="blocks", y="tier")
    legend(axes)
    set_height(figure, 5 * len(groups))
    return figure
