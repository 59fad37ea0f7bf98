"""GPU time of each step by kind of work, and the idle time between."""

from __future__ import annotations

from kvtrace.queries.marks import floats
from kvtrace.queries.plotting import CATEGORIES, COLOURS, MANY_MARKS, Figure, Frame, label, legend, new_figure

KINDS = {
    "gemm_ms": ("matrix products", CATEGORIES["gemm"]),
    "attention_ms": ("attention", CATEGORIES["attention"]),
    "kv_write_ms": ("KV writes", CATEGORIES["kv_write"]),
    "norm_activation_ms": ("norms, activations", CATEGORIES["norm_activation"]),
    "communication_ms": ("collectives", CATEGORIES["communication"]),
    "sampling_ms": ("sampling", CATEGORIES["sampling"]),
    "other_ms": ("other kernels", CATEGORIES["other"]),
    "memcpy_ms": ("copies, fills", "0.4"),
}


def plot(frame: Frame) -> Figure:
    """Above: kernels' durations summed by kind. Below: idle time within the step and before it. One GPU: the first."""
    import numpy as np

    gpus = frame[["pid", "device"]].drop_duplicates()
    shown = "" if len(gpus) < 2 else f"; GPU {gpus.device.iloc[0]} of process {gpus.pid.iloc[0]}, one of {len(gpus)}"
    figure = new_figure("GPU time of each step", source=f"gpu_activity; kinds go by kernel names{shown}", rows=2)
    if frame.empty:
        return figure
    rows = frame[(frame.pid == gpus.pid.iloc[0]) & (frame.device == gpus.device.iloc[0])].sort_values("start_ns")
    work, gaps = figure.axes
    steps = np.arange(len(rows) + 1) - 0.5
    dense = len(rows) > MANY_MARKS
    values = {name: np.nan_to_num(floats(rows[name])) for name in KINDS}
    used = [name for name, value in values.items() if value.any()]
    work.stackplot(
        steps,
        [np.append(values[name], values[name][-1]) for name in used],
        labels=[KINDS[name][0] for name in used],
        colors=[KINDS[name][1] for name in used],
        step="post",
        rasterized=dense,
    )
    label(work, x="", y="ms, summed")
    legend(work)
    for column, name, colour in (("launch_gap_ms", "before", COLOURS[3]), ("idle_ms", "within", COLOURS[0])):
        gaps.plot(np.arange(len(rows)), floats(rows[column]), ".", color=colour, label=name, rasterized=dense)
    label(gaps, x=f"steps {rows.step.min()} to {rows.step.max()}, in order of start", y="idle (ms)")
    gaps.set_ylim(bottom=0)
    legend(gaps)
    return figure
