"""Lag from a block's K to its V by layer: one axis a kind of access."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, MARKERS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """Medians, with lines up to the 95th percentiles."""
    figure = new_figure("Lag from K to V", source="gpu_tile, gpu_write", rows=2)
    for axes, kind in zip(figure.axes, ("read", "write"), strict=True):
        groups = frame[frame.kind == kind].groupby(["process_id", "phase"], dropna=False, observed=True)
        for number, ((worker, phase), rows) in enumerate(groups):
            name = phase if isinstance(phase, str) else "all phases"
            axes.errorbar(
                rows.layer,
                rows.p50_lag_ns,
                yerr=[0 * rows.p50_lag_ns, rows.p95_lag_ns - rows.p50_lag_ns],
                marker=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                markersize=4,
                linewidth=0.8,
                label=name if frame.process_id.nunique() == 1 else f"{name}, worker {worker}",
            )
        label(axes, x="layer", y=f"{kind}: lag (ns)")
        legend(axes, "phase")
    return figure
