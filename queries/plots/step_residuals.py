"""Step time over scheduled tokens: every step, and the line through those of its composition."""

from __future__ import annotations

from kvtrace.queries.marks import floats, log_if_wide
from kvtrace.queries.plotting import MANY_MARKS, PHASES, Figure, Frame, label, new_figure

KINDS = {"decode_only": PHASES["decode"], "with_prefill": PHASES["prefill"]}


def plot(frame: Frame) -> Figure:
    """Two axes beside each other, for their tokens differ by orders; all engines in one colour a composition."""
    figure = new_figure(
        "Step time by scheduled tokens",
        source="step_schedule, step_update; line: least squares",
        columns=2,
        share_x=False,
    )
    kinds = [kind for kind in KINDS if (frame.composition == kind).any()]
    for axes, kind in zip(figure.axes, kinds, strict=False):
        rows = frame[frame.composition == kind]
        tokens = floats(rows.scheduled_tokens)
        axes.scatter(
            tokens, floats(rows.own_ms), s=7, alpha=0.45, linewidths=0, color=KINDS[kind], label=kind,
            rasterized=len(rows) > MANY_MARKS,
        )  # fmt: skip
        for number, (_, fit) in enumerate(rows.groupby("engine_id")):
            line = fit.sort_values("scheduled_tokens")
            name = None if number else "fit"
            axes.plot(floats(line.scheduled_tokens), floats(line.fitted_ms), color="black", linewidth=1.2, label=name)
        log_if_wide(axes, floats(rows.own_ms), axis="y")
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
        label(axes, x=f"{kind}: scheduled (tokens)", y="step time (ms)" if axes is figure.axes[0] else "")
        axes.legend(fontsize=8, frameon=False, loc="upper left")
    for axes in figure.axes[len(kinds) :]:
        axes.set_visible(False)
    return figure
