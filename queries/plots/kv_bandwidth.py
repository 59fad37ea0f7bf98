"""Achieved bandwidth of KV reads and writes by layer: one axis a kind."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, MARKERS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """A line a worker and batch: all bytes over all windows' time."""
    figure = new_figure("KV bandwidth by layer", source="kv_window, kv_layer, step_request", rows=2)
    for axes, kind in zip(figure.axes, ("read", "write"), strict=True):
        groups = frame[frame.kind == kind].groupby(["process_id", "batch"])
        for number, ((worker, batch), rows) in enumerate(groups):
            axes.plot(
                rows.layer,
                rows.gb_per_s,
                marker=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                markersize=4,
                label=batch if frame.process_id.nunique() == 1 else f"{batch}, worker {worker}",
            )
        label(axes, x="layer", y=f"{kind} (GB/s)")
        legend(axes, "batch")
    return figure
