"""Throughput by the most running requests, a line a block size; of one run, one point."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, MARKERS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """The frame may hold the rows of several runs."""
    figure = new_figure("Throughput", source="step_schedule, step_update", columns=2)
    for axes, column, unit in zip(
        figure.axes, ("output_tokens_per_s", "requests_per_s"), ("output tokens/s", "requests/s"), strict=True
    ):
        for number, (size, rows) in enumerate(frame.groupby("block_size_tokens", dropna=False)):
            ordered = rows.sort_values("max_num_seqs")
            axes.plot(
                ordered.max_num_seqs.astype(float),
                ordered[column],
                marker=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                label=f"{size}".replace("<NA>", "unknown"),
            )
        if len(frame):
            axes.set_ylim(bottom=0)
        label(axes, x="max_num_seqs (requests)", y=unit)
    legend(figure.axes[1], "block size")
    return figure
