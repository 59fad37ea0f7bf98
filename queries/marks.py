"""The elements of plots: columns as numbers, bars with names, quantiles as ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from kvtrace.queries.plotting import COLOURS, MANY_MARKS, plain
from kvtrace.queries.text import inert

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows, each with its columns as attributes."""
    return iter(frame.itertuples(index=False))


def means(*columns: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Columns of one length, averaged over runs of consecutive rows where there are more than `MANY_MARKS`."""
    import numpy as np

    rows = len(columns[0])
    length = run_length(rows)
    if length == 1:
        return list(columns)
    starts = np.arange(0, rows, length)
    return [np.add.reduceat(column, starts) / np.diff([*starts, rows]) for column in columns]


def run_length(rows: int) -> int:
    """Return how many rows `means` takes together."""
    return max(1, -(-rows // MANY_MARKS))


def of_runs(length: int) -> str:
    """A note for a plot's source on means of so many rows."""
    return "" if length == 1 else f"; areas and lines: means of {length} rows"


def floats(column: pd.Series) -> NDArray[np.float64]:
    """A column as floating-point numbers; NULL is NaN."""
    import numpy as np
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def seconds_from(column: pd.Series, start_ns: int) -> NDArray[np.float64]:
    """A column of nanoseconds as seconds since `start_ns`; the difference is taken in whole numbers."""
    return floats(column - start_ns) / 1e9


def engine_prefix(frame: pd.DataFrame) -> Callable[[object], str]:
    """The prefix of a label for an engine's data: nothing if there is only one engine."""
    several = frame.engine_id.nunique(dropna=False) > 1
    return lambda engine: f"engine {engine}: " if several else ""


def ranges(axes: Axes, labels: Sequence[str], spans: Sequence[Sequence[float]], colour: str = COLOURS[0]) -> None:
    """Quantiles as horizontal bars, the first label on top.

    Args:
        axes: Where to draw.
        labels: One a bar.
        spans: A bar's low, middle and high quantile and its largest value: a thick line, a dot and a thin line.
        colour: Of the bars.
    """
    places = range(len(labels) - 1, -1, -1)
    for place, (low, middle, high, largest) in zip(places, spans, strict=True):
        axes.plot([high, largest], [place, place], color=colour, linewidth=1)
        axes.plot([low, high], [place, place], color=colour, linewidth=6, alpha=0.45, solid_capstyle="butt")
        axes.plot(middle, place, color=colour, marker="o", markersize=5)
    name_rows(axes, labels)


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name horizontal bars at 0, 1, ... from the bottom; the first label is the topmost."""
    axes.set_yticks(range(len(labels) - 1, -1, -1), [plain(shorten(text)) for text in labels], fontsize=8)
    axes.set_ylim(-0.6, max(len(labels), 1) - 0.4)
    axes.grid(visible=False, axis="y")


def shorten(text: object, longest: int = 44, last: int = 0) -> str:
    """Text from a trace as a label: on one line, and not too long. Its `last` characters are kept, if need be."""
    shown = inert(str(text))
    return shown if len(shown) <= longest else shown[: longest - 1 - last] + "…" + shown[len(shown) - last :]


def set_height(figure: Figure, bars: int) -> None:
    """Make a figure of horizontal bars as high as they need."""
    figure.set_figheight(1.5 + 0.26 * max(bars, 2))


def log_if_wide(axes: Axes, values: Iterable[float], axis: str = "x") -> None:
    """A logarithmic axis where positive values span more than two orders of magnitude; zeros stay on it, at its end."""
    known = [value for value in values if value >= 0]
    positive = [value for value in known if value > 0]
    if not positive or max(positive) <= 100 * min(positive):
        return
    scale, limit = (axes.set_xscale, axes.set_xlim) if axis == "x" else (axes.set_yscale, axes.set_ylim)
    if len(positive) == len(known):
        scale("log")
    else:
        scale("symlog", linthresh=min(positive))
        limit(0, 1.5 * max(positive))


def stack_bars(axes: Axes, labels: Sequence[object], parts: Mapping[str, Sequence[float] | pd.Series]) -> None:
    """Bars that add up to a whole, one a label: `stack_bars(axes, turns, {"queue": ..., "prefill": ...})`.

    Args:
        axes: Where to draw; parts take the palette's colours in order.
        labels: What each bar is of; drawn below it. Long ones, such as tags, are alike but for their ends.
        parts: A length a label, by the part's name in the legend.
    """
    if not len(labels):
        return
    places = range(len(labels))
    bottom = [0.0] * len(labels)
    for number, (name, values) in enumerate(parts.items()):
        lengths = [0.0 if isnan(value) else float(value) for value in values]  # a part that nobody measured
        axes.bar(places, lengths, bottom=bottom, label=plain(name), color=COLOURS[number % len(COLOURS)], width=0.75)
        bottom = [low + length for low, length in zip(bottom, lengths, strict=True)]
    axes.set_xticks(places, [plain(shorten(label, 16, last=8)) for label in labels])
