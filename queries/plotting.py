"""Look of kvtrace's plots: colours, sizes, titles, units, sources. `queries/plots/NAME.py` draws the query NAME.

A plot is a function `plot(frame) -> Figure`: it takes the answer of its query as a pandas frame and returns a
matplotlib figure. It never asks for a trace and never shows a window, so that it works on a server and in a notebook.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kvtrace.errors import KvtraceError
from kvtrace.queries.catalogue import catalogue
from kvtrace.queries.text import inert

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import pandas as pd

# Names for plots to annotate with: importing the libraries takes a second.
Axes: TypeAlias = "matplotlib.axes.Axes"
Figure: TypeAlias = "matplotlib.figure.Figure"
Frame: TypeAlias = "pd.DataFrame"

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
"""Okabe and Ito's palette: told apart with any of the common colour-vision deficiencies. Cycle through it in order."""

PHASES = {"prefill": COLOURS[0], "decode": COLOURS[1], "chunked": COLOURS[4], "resumed": COLOURS[3]}
"""One colour a phase, in every plot."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Beside the colour, so that a plot can be read in grey."""

FORMATS = ("png", "svg", "pdf")
WIDTH_INCHES = 7.0
HEIGHT_INCHES = 3.6
DOTS_PER_INCH = 150

MANY_MARKS = 1500
"""More marks than that are drawn as pixels even in SVG (`rasterized=len(frame) > MANY_MARKS`), lines as means."""

LIMITS = {
    "none": "0.85",
    "token_budget": COLOURS[1],
    "kv_insufficient": COLOURS[3],
    "max_num_seqs": COLOURS[4],
    "preempted": COLOURS[5],
    "prefill_interval": "0.7",
    "paused": "0.55",
    "state_pending": "0.4",
    "remote_kv": COLOURS[2],
    "connector_deferred": "0.45",
    "grammar": "0.3",
    "streaming_input": "0.6",
    "max_loras": "0.2",
    "other": COLOURS[6],
    "not recorded": "0.95",
}
"""One colour a reason why the queue's head was not admitted."""

CATEGORIES = {
    "gemm": COLOURS[0],
    "attention": COLOURS[1],
    "kv_write": COLOURS[2],
    "norm_activation": COLOURS[4],
    "communication": COLOURS[3],
    "sampling": COLOURS[5],
    "copy": COLOURS[6],
    "kvtrace": COLOURS[7],
    "other": "0.7",
}
"""One colour a category of kernels."""

Plot = Callable[[Frame], Figure]


def new_figure(title: str, *, source: str = "", rows: int = 1, columns: int = 1, share_x: bool = True) -> Figure:
    """A figure of `rows` x `columns` axes (`figure.axes`, row by row) with a title above and the source below.

    Args:
        title: What is seen, in a few words.
        source: Where the data come from and what was left out, in small print; nothing if empty.
        rows: Axes below each other.
        columns: Axes beside each other.
        share_x: Axes of a column have one x axis.
    """
    from matplotlib import figure as figures

    figure = figures.Figure(figsize=(WIDTH_INCHES, 1.0 + (HEIGHT_INCHES - 1.0) * rows), layout="constrained")
    figure.suptitle(plain(title), fontsize=11)
    figure.subplots(rows, columns, sharex="col" if share_x else "none", squeeze=False)
    for axes in figure.axes:
        axes.set_prop_cycle(color=COLOURS)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
    if source:
        figure.supxlabel(plain(source), fontsize=7, color="0.35")
    return figure


def label(axes: Axes, *, x: str, y: str) -> None:
    """Name the axes, each with its unit: `label(axes, x="time (s)", y="blocks in use (blocks)")`."""
    axes.set_xlabel(plain(x))
    axes.set_ylabel(plain(y))


def legend(axes: Axes, title: str | None = None) -> None:
    """A legend outside the data, to the right; none if nothing is labelled."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            title=title, fontsize=8, title_fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )


FEWEST_MARKS = 3
"""With fewer values a plot tells no more than its table."""


def shows_something(figure: Figure) -> bool:
    """Return whether any axes of a figure have enough marks to compare: points, bars with a length, or cells."""
    return any(_has_numbers(axes) and _marks(axes) >= FEWEST_MARKS for axes in figure.axes)


def _has_numbers(axes: Axes) -> bool:
    """Say whether anything is drawn at a place that is a number: values that nobody knows are NaN."""
    return axes.has_data() and all(map(math.isfinite, axes.dataLim.get_points().flat))


def _marks(axes: Axes) -> int:
    import numpy as np
    from matplotlib.collections import LineCollection, PathCollection
    from matplotlib.patches import Rectangle

    count = sum(np.size(line.get_xdata()) for line in axes.lines if line.get_transform() == axes.transData)
    count += sum(
        1 for patch in axes.patches if not isinstance(patch, Rectangle) or (patch.get_width() and patch.get_height())
    )
    for collection in axes.collections:
        if isinstance(collection, PathCollection):
            count += len(np.asarray(collection.get_offsets()))
        elif isinstance(collection, LineCollection):
            count += len(collection.get_segments())
        else:
            # A bar has two edges; an area has one more than it has steps.
            count += sum(len(np.unique(np.asarray(path.vertices)[:, 0])) - 1 for path in collection.get_paths())
    return int(count) + sum(np.asarray(image.get_array()).size for image in axes.images)


def plain(text: object) -> str:
    """Text from a trace that matplotlib draws as it is.

    A dollar sign would start mathematics, and a control character would make no SVG.
    """
    return inert(str(text)).replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the path's ending is one of `FORMATS`. The same data give the same bytes.

    Raises:
        KvtraceError: another ending, or the file cannot be written.
    """
    data = draw_bytes(figure, check_path(path))
    try:
        path.write_bytes(data)
    except OSError as error:
        raise KvtraceError(f"cannot write {path}: {error.strerror}") from error


def draw_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file's contents; `kind` is one of `FORMATS`. The same data give the same bytes."""
    import matplotlib as mpl

    undated: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "kvtrace"}):
        figure.savefig(drawn, format=kind, dpi=DOTS_PER_INCH, metadata=undated)
    return drawn.getvalue()


def check_path(path: Path) -> str:
    """The format that a plot's file name asks for, one of `FORMATS`.

    Raises:
        KvtraceError: it asks for another.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise KvtraceError(f"{path}: a plot is written as {', '.join(FORMATS)}; end the file's name with one of them")
    return kind


def find_plot(query: str) -> Plot | None:
    """The plot of the query of that name; None if it has none."""
    if not has_plot(query):
        return None
    plot: Plot = import_module(_module(query)).plot
    return plot


def has_plot(query: str) -> bool:
    """The query of that name has a plot; nothing is imported."""
    return importlib.util.find_spec(_module(query)) is not None


def _module(query: str) -> str:
    return f"kvtrace.queries.plots.{query.replace('-', '_')}"


def plotted() -> list[str]:
    """The names of the queries that have a plot."""
    return [name for name in catalogue() if has_plot(name)]


def plot_of(query: str) -> Plot:
    """The plot of the query of that name.

    Raises:
        KvtraceError: it has none; the message lists those that have one.
    """
    found = find_plot(query)
    if found is None:
        raise KvtraceError(f"query {query} has no plot; these have one: {', '.join(plotted())}")
    return found
