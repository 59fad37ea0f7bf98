"""A comparison for people: lines of text, a plot, and the page, Markdown and CSV that hold them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.queries.plotting import COLOURS, draw_bytes, label, new_figure
from kvtrace.queries.text import inert
from kvtrace.reports.answers import Picture
from kvtrace.reports.bootstrap import FEWEST_UNITS, RESAMPLES
from kvtrace.reports.compare import Comparison, Difference, Row
from kvtrace.reports.render import render
from kvtrace.reports.report import check_folder, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "compare.html"
READING = (
    "Intervals are over the requests of these very runs. They do not know how much a run differs from its own "
    "repetition: record each setup twice and compare those, too, before believing a small difference."
)
METHOD = (
    "A run's number is taken over all its requests or steps; the difference over the pairs alone, so it may not be "
    "that of the two numbers. `better` and `worse` say that the interval leaves out zero; `unclear`, that it does not.",
    f"The interval holds the middle 95% of the differences in {RESAMPLES:,} bootstrap samples of the pairs, drawn with "
    "a fixed seed: requests are drawn with both their values. Where sessions made the pairs, whole sessions are drawn, "
    "for turns of one are no independent observations. For few units it is widened as Student's t is. There is none "
    f"below {FEWEST_UNITS} of them, none for a 95th percentile of fewer than 20 pairs, and none for metrics that have "
    "one value a run.",
)

CSV_COLUMNS = (
    *("metric", "unit", "better", "query", "statistic", "run", "trace", "value"),
    *("difference", "relative", "low", "high", "pairs", "drawn", "verdict"),
)


@dataclass(frozen=True)
class Line:
    """A metric of two runs, as text."""

    name: str
    unit: str
    better: str
    base: str
    other: str
    difference: str
    change: str
    interval: str
    pairs: str
    verdict: str


@dataclass(frozen=True)
class Section:
    """Comparison of one run with the first."""

    letter: str
    repeat: bool
    description: str
    lines: list[Line]
    picture: Picture | None


def lines(comparison: Comparison, other: int) -> list[Line]:
    """The metrics of run number `other` (from 1) beside those of the first, as text."""
    return [_line(row, other) for row in comparison.rows]


def write_comparison(comparison: Comparison, folder: Path, *, force: bool = False) -> Path:
    """Write the page, the Markdown, the CSV and the plots; returns the page's path.

    Raises:
        KvtraceError: the folder cannot be written, or holds a page of that name that kvtrace did not make.
    """
    check_folder(folder, PAGE, force=force)
    sections = [_section(comparison, other) for other in range(1, len(comparison.names))]
    values = {
        "comparison": comparison,
        "sections": sections,
        "reading": READING,
        "method": METHOD,
        "version": __version__,
    }
    try:
        for section in sections:
            for kind, data in (section.picture.files if section.picture else {}).items():
                write_file(folder / "plots" / f"{section.letter}.{kind}", data)
        write_file(folder / "compare.csv", as_csv(comparison).encode())
        write_file(folder / "compare.md", render("compare.md.j2", **values).encode())
        write_file(folder / PAGE, render("compare.html", **values).encode())
    except OSError as error:
        raise KvtraceError(f"{folder}: cannot be written: {error.strerror or error}; choose another with -o") from error
    return folder / PAGE


def as_csv(comparison: Comparison) -> str:
    """All numbers, unrounded: a line a metric and run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in comparison.rows:
        metric = row.metric
        for number, (letter, name, value) in enumerate(
            zip(comparison.letters, comparison.names, row.values, strict=True)
        ):
            found = row.differences[number - 1] if number else None
            facts = [metric.name, metric.unit, metric.better, metric.query, metric.statistic, letter, name, value]
            writer.writerow([*facts, *_csv_difference(found, metric.better)])
    return text.getvalue()


def forest(comparison: Comparison, other: int) -> Figure:
    """The relative differences of a run from the first, each with its interval."""
    rows = [(row, found) for row in comparison.rows if (found := row.differences[other - 1]) and _drawable(found)]
    letter = comparison.letters[other]
    figure = new_figure(
        f"{letter} against A", source="difference over A's value; bars: bootstrap 95% intervals over pairs"
    )
    figure.set_size_inches(7.0, 1.3 + 0.24 * len(rows))
    axes = figure.axes[0]
    colours = {"better": COLOURS[2], "worse": COLOURS[3]}
    for place, (row, found) in enumerate(reversed(rows)):
        colour = colours.get(found.verdict(row.metric.better), "0.45")
        scale = found.relative / found.value if found.value else 0
        if found.interval:
            ends = [100 * scale * found.interval.low, 100 * scale * found.interval.high]
            axes.plot(ends, [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot(
            100 * found.relative, place, color=colour, marker="o" if found.interval else "D", markersize=5,
            markerfacecolor=colour if found.interval else "white",
        )  # fmt: skip
    axes.axvline(0, color="0.2", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.metric.name for row, _ in reversed(rows)], fontsize=8)
    label(axes, x=f"{letter} - A (% of A); green is better, orange worse; diamonds have no interval", y="")
    return figure


def _drawable(found: Difference) -> bool:
    return math.isfinite(found.relative)


def _section(comparison: Comparison, other: int) -> Section:
    drawn = any(row.differences[other - 1] and _drawable(row.differences[other - 1]) for row in comparison.rows)  # type: ignore[arg-type]
    return Section(
        letter=comparison.letters[other],
        repeat=comparison.repeats[other - 1],
        description=comparison.pairings[other - 1].description,
        lines=lines(comparison, other),
        picture=Picture({"svg": draw_bytes(forest(comparison, other), "svg")}) if drawn else None,
    )


def _line(row: Row, other: int) -> Line:
    found, metric = row.differences[other - 1], row.metric
    span = found.interval if found else None
    return Line(
        name=metric.name,
        unit=metric.unit,
        better=metric.better or "",
        base=_number(row.values[0]),
        other=_number(row.values[other]),
        difference=_number(found.value, "+") if found else "-",
        change=_percent(found.relative) if found else "-",
        interval=f"{_number(span.low, '+')} .. {_number(span.high, '+')}" if span else "-",
        pairs=f"{found.pairs:,}" if found and found.pairs else "-",
        verdict=found.verdict(metric.better) if found else "",
    )


def _csv_difference(found: Difference | None, better: str | None) -> list[object]:
    if found is None:
        return [None] * 7
    span = found.interval
    ends = [span.low, span.high] if span else [None, None]
    relative = found.relative if math.isfinite(found.relative) else None
    return [found.value, relative, *ends, found.pairs, span.units if span else None, found.verdict(better)]


def _number(value: float | None, sign: str = "") -> str:
    """Four significant digits, whole numbers whole."""
    if value is None:
        return "-"
    if value == round(value) and abs(value) < 1e9:
        return f"{value:{sign if value else ''},.0f}"
    return f"{value:{sign}.4g}" if abs(value) < 1e4 else f"{value:{sign},.0f}"


def _percent(share: float) -> str:
    return f"{share * 100:+.1f}%" if math.isfinite(share) else "-"


def heading(comparison: Comparison) -> list[str]:
    """Return the command line's heading: the runs, and why comparing them may be unfair."""
    return [
        *(f"{letter}: {inert(name)}" for letter, name in zip(comparison.letters, comparison.names, strict=True)),
        *(f"{setting.name}: {_values(comparison, setting.values)}" for setting in comparison.settings),
    ]


def _values(comparison: Comparison, values: tuple[str, ...]) -> str:
    return ", ".join(f"{letter} {inert(value)}" for letter, value in zip(comparison.letters, values, strict=True))
