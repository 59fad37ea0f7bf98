"""Each preemption: what it lost, and what getting it back took or would have taken."""

from __future__ import annotations

from kvtrace.queries.marks import floats
from kvtrace.queries.plotting import COLOURS, Figure, Frame, label, legend, new_figure

COSTS = {
    "queue_ms": "waiting to resume",
    "added_ms": "recomputing, wall time added",
    "recompute_ms": "recomputing, by the cost model",
    "fetch_ms": "fetching at the measured rate",
}


def plot(frame: Frame) -> Figure:
    """Bars side by side, a group a preemption in order of time; a cost that is not known has no bar."""
    import numpy as np

    figure = new_figure("Preemptions in order", source="request_event, step_request, cost_model", rows=2)
    if frame.empty:
        return figure
    tokens, costs = figure.axes
    places = np.arange(len(frame))
    tokens.bar(places - 0.2, floats(frame.lost_tokens), 0.4, color="0.7", label="lost")
    tokens.bar(places + 0.2, np.nan_to_num(floats(frame.recomputed_tokens)), 0.4, color=COLOURS[3], label="recomputed")
    label(tokens, x="", y="tokens")
    legend(tokens)
    known = [name for name in COSTS if frame[name].notna().any()]
    width = 0.8 / max(len(known), 1)
    for number, name in enumerate(known):
        offset = (number - (len(known) - 1) / 2) * width
        costs.bar(places + offset, np.nan_to_num(floats(frame[name])), width, color=COLOURS[number], label=COSTS[name])
    label(costs, x="preemption", y="ms")
    legend(costs)
    if len(frame) <= 30:
        costs.set_xticks(
            places, [f"request {request}" for request in frame.request], fontsize=7, rotation=45, ha="right"
        )
    return figure
