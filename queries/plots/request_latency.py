"""Parts of each request's time, and the distribution of latencies."""

from __future__ import annotations

from kvtrace.queries.marks import floats, log_if_wide
from kvtrace.queries.plotting import COLOURS, MANY_MARKS, PHASES, Figure, Frame, label, legend, new_figure

PARTS = {
    "frontend_ms": ("API process", "0.75"),
    "queue_ms": ("queue", COLOURS[5]),
    "prefill_ms": ("prefill", PHASES["prefill"]),
    "decode_ms": ("decode", PHASES["decode"]),
}


def plot(frame: Frame) -> Figure:
    """Above: the parts of each request's time, in order of arrival. Below: how many requests took at most so long."""
    import numpy as np

    figure = new_figure("Latency of requests", source="request; as the scheduler saw it", rows=2, share_x=False)
    finished = frame[frame.total_ms.notna() & frame.samples.isna()]
    if finished.empty:
        return figure
    parts, shares = figure.axes
    places = np.append(np.arange(len(finished)), len(finished)) + 0.5
    values = [np.nan_to_num(floats(finished[name])).clip(min=0) for name in PARTS]
    parts.stackplot(
        places,
        [np.append(value, value[-1]) for value in values],
        labels=[name for name, _ in PARTS.values()],
        colors=[colour for _, colour in PARTS.values()],
        step="post",
        rasterized=len(finished) > MANY_MARKS,
    )
    label(parts, x="request, in order of arrival", y="ms")
    legend(parts)
    ends = {
        "queue_ms": ("queue", COLOURS[5]),
        "ttft_ms": ("first token", COLOURS[0]),
        "total_ms": ("whole", COLOURS[7]),
    }
    for column, (name, colour) in ends.items():
        known = np.sort(floats(finished[column].dropna()))
        if len(known):
            shares.step(known, np.arange(1, len(known) + 1) / len(known), where="post", color=colour, label=name)
    log_if_wide(shares, floats(finished.total_ms))
    label(shares, x="at most (ms)", y="requests (ratio)")
    legend(shares)
    return figure
