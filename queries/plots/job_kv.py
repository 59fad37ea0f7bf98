"""One job's KV over time: in use, free, only in an offload tier, or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import COLOURS, label, legend, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(frame: pd.DataFrame) -> Figure:
    """Stacked areas that add up to the job's content; grey where no turn is in the engine; tier's blocks as a line."""
    job = frame.session.iloc[0] if len(frame) else ""
    figure = new_figure(f"KV of job {job}", source="block_event, tier_block, request")
    axes = figure.axes[0]
    if len(frame):
        lost = frame.gone_blocks - frame.tier_only_blocks
        axes.stackplot(
            frame.at_s,
            *(blocks.astype(float) for blocks in (frame.used_blocks, frame.cached_free_blocks)),
            frame.tier_only_blocks.astype(float),
            lost.astype(float),
            labels=["in use", "free, cached", "only in a tier", "lost"],
            colors=[COLOURS[0], COLOURS[4], COLOURS[1], "0.88"],
            step="post",
        )
        axes.step(frame.at_s, frame.tier_blocks, where="post", color="black", linewidth=1, label="in a tier")
        idle = frame.phase.isin(["gap", "ended"])
        axes.fill_between(
            frame.at_s,
            0,
            1,
            where=idle,
            step="post",
            transform=axes.get_xaxis_transform(),
            color="0.5",
            alpha=0.25,
            linewidth=0,
            label="no turn in the engine",
        )
    label(axes, x="time since the job's arrival (s)", y="full blocks of the job")
    legend(axes)
    return figure
