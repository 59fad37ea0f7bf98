"""Steps over time: tokens by phase, its wall time, the queues."""

from __future__ import annotations

from kvtrace.queries.marks import floats, means, of_runs, run_length, seconds_from
from kvtrace.queries.plotting import COLOURS, MANY_MARKS, PHASES, WIDTH_INCHES, Figure, Frame, label, legend, new_figure

TOKENS = {
    "decode_tokens": "decode",
    "prefill_tokens": "prefill",
    "chunked_prefill_tokens": "chunked",
    "resumed_tokens": "resumed",
}


def plot(frame: Frame) -> Figure:
    """Three axes below each other; engines, if there are several, beside each other."""
    import numpy as np

    frame = frame[frame.start_ns.notna()]  # steps of imported files may have no time
    engines = sorted(frame.engine_id.unique())
    columns = max(1, len(engines))
    longest = run_length(int(frame.engine_id.value_counts().max())) if engines else 1
    source = "step_schedule, step_update" + of_runs(longest)
    figure = new_figure("Scheduler steps over time", source=source, rows=3, columns=columns)
    figure.set_figwidth(WIDTH_INCHES * max(1, columns / 2))
    for number, engine in enumerate(engines):
        rows = frame[frame.engine_id == engine]
        tokens, times, queues = figure.axes[number::columns]
        seconds = seconds_from(rows.start_ns, int(frame.start_ns.min()))
        dense = len(rows) > MANY_MARKS
        tokens.stackplot(
            *means(seconds, *(np.nan_to_num(floats(rows[name])) for name in TOKENS)),
            labels=list(TOKENS.values()),
            colors=[PHASES[phase] for phase in TOKENS.values()],
            step="post",
        )
        times.plot(seconds, floats(rows.interval_ms), ".", markersize=2.5, color=COLOURS[0], rasterized=dense)
        times.set_ylim(bottom=0)
        for column, colour in (("running", COLOURS[0]), ("waiting", COLOURS[1])):
            queues.step(*means(seconds, floats(rows[column])), where="post", color=colour, label=column)
        preempted = floats(rows.preempted_requests) > 0
        if preempted.any():
            queues.plot(
                seconds[preempted],
                np.zeros(preempted.sum()),
                "x",
                color=COLOURS[3],
                label="preemption",
                rasterized=dense,
            )
        name = "" if columns == 1 else f"engine {engine}: "
        for axes, what in ((tokens, "tokens"), (times, "step time (ms)"), (queues, "requests")):
            label(axes, x="time (s)" if axes is queues else "", y=name + what)
            if number == columns - 1:
                legend(axes)
    return figure
