"""GPU and host KV memory in use and throughput over time, with evictions and resumes marked: one axis an engine."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, Axes, Figure, Frame, label, new_figure, plain

MOST_ENGINES = 6
MOST_MARKS = 200
EVICTED, RESUMED = COLOURS[3], COLOURS[2]


def plot(frame: Frame) -> Figure:
    """Utilisation in percent on the left, tokens a second on the right."""
    known = frame[frame["gpu_usage"].notna()]
    evictions = known.groupby("engine_id")["preempted"].sum()
    wanted = [engine for engine in evictions.index if evictions[engine] > 0] or list(evictions.index)
    engines = sorted(sorted(wanted, key=lambda engine: (-evictions[engine], engine))[:MOST_ENGINES])
    others = len(evictions) - len(engines)
    left_out = f"; {others} engines with fewer or no evictions are not shown" if others else ""
    figure = new_figure(
        "KV memory and throughput over time",
        source=f"step_schedule, step_update, engine_sample{left_out}",
        rows=max(1, len(engines)),
        share_x=False,
    )
    for axes, engine in zip(list(figure.axes), engines, strict=False):
        rows = known[known["engine_id"] == engine]
        _draw(axes, rows)
        names = rows["name"].dropna()
        axes.set_title(plain(names.iloc[0] if len(names) else f"engine {engine}"), fontsize=8, loc="left")
    return figure


def _draw(axes: Axes, rows: Frame) -> None:
    throughput = axes.twinx()
    throughput.spines["top"].set_visible(False)
    throughput.grid(visible=False)
    timed = rows[(rows["tokens_per_s"] > 0) & rows["start_s"].notna()]
    throughput.hlines(
        timed["tokens_per_s"].astype(float), timed["start_s"], timed["time_s"], color="0.55", linewidth=1.2,
        label="throughput (right)",
    )  # fmt: skip
    if len(timed):
        throughput.set_yscale("log")
    throughput.set_ylabel("tokens/s", color="0.4")
    axes.set_zorder(throughput.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.step(rows["time_s"], rows["gpu_usage"] * 100, where="post", color=COLOURS[0], label="GPU KV in use")
    if (rows["host_usage"] > 0).any():
        axes.step(
            rows["time_s"],
            rows["host_usage"] * 100,
            where="post",
            color=COLOURS[1],
            linestyle="--",
            label="host KV in use",
        )
    for column, what, colour, style in (("preempted", "eviction", EVICTED, ":"), ("resumed", "resume", RESUMED, "-.")):
        marked = rows[rows[column].fillna(0) > 0]
        for nth, at in enumerate(marked["start_s"].head(MOST_MARKS)):
            axes.axvline(at, color=colour, linestyle=style, linewidth=1.4, label=f"{what}" if nth == 0 else None)
        if 0 < len(marked) <= 2:
            for at in marked["start_s"]:
                axes.annotate(
                    f" {what} {at:.1f} s",
                    (at, 1.0),
                    xycoords=("data", "axes fraction"),
                    va="top",
                    fontsize=7,
                    color=colour,
                )
    axes.set_ylim(0, 105)
    label(axes, x="time (s)", y="KV blocks in use (%)")
    lines, texts = axes.get_legend_handles_labels()
    more, their = throughput.get_legend_handles_labels()
    axes.legend(lines + more, texts + their, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.14, 1.0))
