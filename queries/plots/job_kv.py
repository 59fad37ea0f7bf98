"""One job's KV over time: in use, free, only in an offload tier, or lost."""

from __future__ import annotations

from kvtrace.queries.marks import shorten
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Stacked areas that add up to the job's content, tier's blocks as a line; a band above where a turn is served."""
    job = frame.session.iloc[0] if len(frame) else ""
    figure = new_figure(f"KV of job {shorten(job)}", source="block_event, tier_block, request")
    axes = figure.axes[0]
    if len(frame):
        lost = frame.gone_blocks - frame.tier_only_blocks
        axes.stackplot(
            frame.at_s,
            frame.used_blocks.astype(float),
            frame.cached_free_blocks.astype(float),
            frame.tier_only_blocks.astype(float),
            lost.astype(float),
            labels=["in use", "free, cached", "only in a tier", "lost"],
            colors=[COLOURS[0], COLOURS[4], COLOURS[1], "0.88"],
            step="post",
        )
        axes.step(frame.at_s, frame.tier_blocks, where="post", color="black", linewidth=1, label="in a tier")
        served = ~frame.phase.isin(["gap", "ended"])
        lengths = frame.at_s.shift(-1, fill_value=frame.at_s.iloc[-1]) - frame.at_s
        axes.broken_barh(
            list(zip(frame.at_s[served], lengths[served], strict=True)),
            (0.97, 0.03),
            transform=axes.get_xaxis_transform(),
            color=COLOURS[3],
            linewidth=0,
            label="a turn in the engine",
        )
        axes.set_ylim(0, max(1, frame.content_blocks.max()) * 1.1)
    label(axes, x="time since the job's arrival (s)", y="full blocks of the job")
    legend(axes)
    return figure
