"""Each request's prompt: from the cache, from a connector, computed; and its hit rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.marks import floats, means, of_runs, run_length, shorten
from kvtrace.queries.plotting import COLOURS, MANY_MARKS, MARKERS, Figure, Frame, label, legend, new_figure

if TYPE_CHECKING:
    import pandas as pd


MOST_TURNS = 8
"""Turns beyond are drawn in one colour."""


def plot(frame: Frame) -> Figure:
    """Requests in the order of their keys, which is that of their first record; those never admitted are left out."""
    import numpy as np

    frame = frame[frame.queried_tokens.notna()].sort_values(["engine_id", "request"])
    source = "prefix_lookup, first admissions" + of_runs(run_length(len(frame)))
    figure = new_figure("Prefix cache hits of each request", source=source, rows=2)
    if frame.empty:
        return figure
    amounts, rates = figure.axes
    places = np.arange(len(frame))
    parts = [np.nan_to_num(floats(frame[name])) for name in ("local_hit_tokens", "external_hit_tokens")]
    parts.append(floats(frame.queried_tokens) - parts[0] - parts[1])
    firsts, *shown = means(places.astype(float), *parts)
    amounts.stackplot(
        np.append(firsts, len(places)) - 0.5,
        [np.append(part, part[-1]) for part in shown],
        labels=["GPU prefix cache", "KV connector", "to be computed"],
        colors=[COLOURS[2], COLOURS[4], "0.85"],
        step="post",
    )
    label(amounts, x="", y="prompt (tokens)")
    legend(amounts)
    for number, (name, chosen) in enumerate(_turns(frame)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        rates.plot(
            places[chosen], floats(frame.hit_rate[chosen]), marker, markersize=4, color=colour, label=name,
            rasterized=len(frame) > MANY_MARKS,
        )  # fmt: skip
    rates.set_ylim(-0.03, 1.03)
    label(rates, x="request, in order", y="hit rate (ratio)")
    legend(rates)
    return figure


def _turns(frame: Frame) -> list[tuple[str | None, pd.Series]]:
    """Masks of the frame by turn, if there are turns and not too many."""
    turns = sorted(frame.turn.dropna().unique())
    if not 1 < len(turns) <= MOST_TURNS:
        return [(None, frame.request.notna())]
    masks: list[tuple[str | None, pd.Series]] = [
        (f"turn {shorten(turn)}", (frame.turn == turn).fillna(False).astype(bool)) for turn in turns
    ]
    return [*masks, ("no turn", frame.turn.isna())] if frame.turn.isna().any() else masks
