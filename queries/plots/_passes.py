"""Common parts of the plots of KV access by forward pass: a panel a pass, blocks upwards, one colour a request."""

from __future__ import annotations

from kvtrace.queries.plotting import COLOURS, Axes, Figure, Frame, label, new_figure

MOST_PASSES = 8
MOST_REQUESTS = len(COLOURS) - 2  # the last two are too pale or too dark beside the others
OTHERS = "0.6"
_BREAK = {"marker": [(-1, -1), (1, 1)], "markersize": 6, "linestyle": "none", "color": "0.3", "clip_on": False}


def draw_passes(frame: Frame, spans: dict[str, tuple[str, str]], *, title: str, source: str, nothing: str) -> Figure:
    """Draw a row of panels a span, a panel a pass, with the time in the pass to the right and gaps between panels.

    Args:
        frame: The rows, with pass, pass_ms, step, phase, request, block_id, pool_blocks and the spans' columns.
        spans: The columns of begin and end (ms) by what they are of.
        title: The figure's.
        source: In small print.
        nothing: Written into a panel without a block.
    """
    passes = sorted(frame["pass"].unique())
    shown = passes[:MOST_PASSES]
    left_out = f"; {len(passes) - len(shown)} later passes are not shown" if len(passes) > len(shown) else ""
    columns = max(1, len(shown))
    times = [each for ends in spans.values() for each in ends]
    unit, scale = ("us", 1000) if frame[times].max().max() < 1 else ("ms", 1)
    frame = frame.assign(**{each: frame[each] * scale for each in times})
    figure = new_figure(title, source=source + left_out, rows=len(spans), columns=columns, share_x=False)
    colours = _colours(frame)
    blocks = frame["block_id"].dropna()
    for row, (what, ends) in enumerate(spans.items()):
        for column, number in enumerate(shown):
            axes = figure.axes[row * columns + column]
            rows = frame[frame["pass"] == number]
            _draw(axes, rows, ends, colours)
            if rows["block_id"].isna().all():
                axes.set_xticks([])
                axes.text(0.5, 0.5, nothing, transform=axes.transAxes, ha="center", color="0.4", fontsize=8)
            if len(blocks):
                axes.set_ylim(blocks.min() - 3, blocks.max() + 3)
            last = rows[[each[1] for each in spans.values()]].stack().dropna()
            axes.set_xlim(0, last.max() * 1.05 if (last > 0).any() else 1)
            axes.tick_params(labelsize=7)
            axes.locator_params(axis="x", nbins=4)
            _open(axes, first=column == 0, last=column == columns - 1)
            if row == 0:
                _head(axes, rows, int(number))
            if column == 0:
                pool = frame["pool_blocks"].dropna()
                of = f" (pool: 0 to {int(pool.max()) - 1})" if len(pool) else ""
                label(axes, x="", y=f"{what}: block id{of}" if len(spans) == 1 else f"{what}: block id")
            if row == len(spans) - 1 and column == columns // 2:
                axes.set_xlabel(f"time since the layer's first access in the pass ({unit})")
    _requests(figure, frame, colours)
    return figure


def _colours(frame: Frame) -> dict[object, str]:
    """A colour a request, those whose prompts are computed first; grey for those beyond and for the unknown."""
    computed = set(frame[frame["phase"] != "decode"]["request"].dropna())
    requests = sorted(frame["request"].dropna().unique(), key=lambda request: (request not in computed, request))
    return dict(zip(sorted(requests[:MOST_REQUESTS]), COLOURS, strict=False))


def _draw(axes: Axes, rows: Frame, ends: tuple[str, str], colours: dict[object, str]) -> None:
    known = rows.dropna(subset=["block_id", *ends])
    for request, mine in known.groupby("request", dropna=False, sort=True):
        axes.hlines(
            mine["block_id"].astype(float),
            mine[ends[0]],
            mine[ends[1]],
            color=colours.get(request, OTHERS),
            linewidth=1.6,
        )


def _open(axes: Axes, *, first: bool, last: bool) -> None:
    """Take away the sides towards the neighbours and mark that the time axis is broken there."""
    axes.spines["left"].set_visible(first)
    axes.tick_params(axis="y", left=first, labelleft=first)
    for side, there in ((0, not first), (1, not last)):
        if there:
            axes.plot([side], [0], transform=axes.transAxes, **_BREAK)  # type: ignore[arg-type]


def _head(axes: Axes, rows: Frame, number: int) -> None:
    phases = set(rows["phase"].dropna().astype(str))
    phase = phases.pop() if len(phases) == 1 else "mixed" if phases else "phase unknown"
    at = f"+{rows['pass_ms'].iloc[0]:,.1f} ms"
    axes.set_title(f"F{number} {phase.replace('_', ' ')}\n{at}", fontsize=8)


def _requests(figure: Figure, frame: Frame, colours: dict[object, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, label=f"R{int(request)}") for request, colour in colours.items()]  # type: ignore[call-overload]
    others = frame[frame["block_id"].notna()]["request"].nunique(dropna=False) - len(colours)
    if others > 0:
        handles.append(Line2D([], [], color=OTHERS, label=f"{others} others"))
    if handles:
        figure.legend(
            handles=handles, loc="outside right upper", fontsize=8, frameon=False, title="request", title_fontsize=8
        )
