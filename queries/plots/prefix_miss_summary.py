"""Recomputed prompt tokens by why they were not found."""

from __future__ import annotations

from kvtrace.queries.marks import engine_prefix, floats, name_rows, records, set_height
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure


def plot(frame: Frame) -> Figure:
    """A bar a verdict: what a cache that lost nothing would have supplied, and the rest."""
    figure = new_figure("Why prefix lookups missed", source="prefix_miss; verdicts are derived, see docs/misses.md")
    frame = frame[frame.recomputed_tokens > 0].sort_values("recomputed_tokens", ascending=False)
    if frame.empty:
        return figure
    axes = figure.axes[0]
    prefix = engine_prefix(frame)
    places = range(len(frame) - 1, -1, -1)
    avoidable, all_tokens = floats(frame.avoidable_tokens), floats(frame.recomputed_tokens)
    axes.barh(places, avoidable, color=COLOURS[3], label="avoidable")
    axes.barh(places, all_tokens - avoidable, left=avoidable, color="0.78", label="unavoidable")
    for place, tokens, lookups in zip(places, all_tokens, frame.lookups, strict=True):
        axes.text(tokens, place, f" {lookups:,} lookups", va="center", fontsize=8)
    names = [f"{prefix(row.engine_id)}{row.verdict}{', resumed' if row.resumed else ''}" for row in records(frame)]
    name_rows(axes, names)
    axes.margins(x=0.22)
    label(axes, x="recomputed (tokens)", y="verdict")
    legend(axes)
    set_height(figure, len(frame))
    return figure
