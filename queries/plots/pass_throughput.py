"""Throughput of forward passes against their tokens, and how much of the token budget they use."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, MARKERS, PHASES, Axes, Figure, Frame, label, legend, new_figure, plain

MIXED = COLOURS[2]
BATCHINGS = ("default", "chunked", "mixed")
MOST_ENGINES = 8


def plot(frame: Frame) -> Figure:
    """Above: tokens a second by phase (colour) and batching (marker), a run's passes together filled. Below: fill."""
    rate = frame["reported_tokens_per_s"].astype(float).fillna(frame["tokens_per_s"].astype(float))
    known = frame.assign(rate=rate)[rate > 0]
    figure = new_figure(
        "Throughput of forward passes and fill of the token budget",
        source="step_schedule, step_update; imported logs: as vLLM reported (engine_sample). "
        "Filled: a run's passes together.",
        rows=2,
        share_x=False,
    )
    above, below = figure.axes
    if len(known):
        _throughput(above, known)
    filled = known[known["fill"].notna()]
    if len(filled):
        _fill(below, filled)
    return figure


def _throughput(axes: Axes, rows: Frame) -> None:
    colours = {"prefill": PHASES["prefill"], "decode": PHASES["decode"], "mixed": MIXED}
    for (phase, batching), points in rows.fillna({"phase": "unknown", "batching": "unknown"}).groupby(
        ["phase", "batching"], sort=True
    ):
        marker = MARKERS[BATCHINGS.index(batching)] if batching in BATCHINGS else MARKERS[-1]
        axes.scatter(
            points["batch_tokens"], points["rate"], s=22, marker=marker, facecolor="none",
            edgecolor=colours.get(str(phase), "0.4"), label=plain(f"{phase}, {batching} batching"),
        )  # fmt: skip
        for _, run in points.groupby("engine_id"):
            seconds = (run["batch_tokens"] / run["rate"]).sum()
            axes.scatter(
                run["batch_tokens"].mean(), run["batch_tokens"].sum() / seconds, s=60, marker=marker,
                color=colours.get(str(phase), "0.4"), edgecolor="white", zorder=3,
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.set_yscale("log")
    label(axes, x="tokens of the pass (tokens)", y="throughput (tokens/s)")
    legend(axes)


def _fill(axes: Axes, rows: Frame) -> None:
    from matplotlib.ticker import MaxNLocator

    engines = sorted(rows["engine_id"].unique())
    for nth, engine in enumerate(engines[:MOST_ENGINES]):
        mine = rows[rows["engine_id"] == engine]
        batching = mine["batching"].fillna("batching unknown").iloc[0]
        text = f"{batching}, budget {int(mine['budget_tokens'].max()):,}"
        colour, marker = COLOURS[nth % len(COLOURS)], MARKERS[nth % len(MARKERS)]
        axes.plot(
            mine["pass"],
            mine["fill"] * 100,
            marker=marker,
            markersize=3.5,
            linewidth=1,
            color=colour,
            label=plain(text),
        )
    axes.set_ylim(0, 105)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(axes, x="forward pass", y="token budget used (%)")
    legend(axes)
