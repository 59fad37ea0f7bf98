"""A comparison for people: lines of text, a plot, and the page, Markdown and CSV that hold them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.queries.plotting import COLOURS, draw_bytes, label, new_figure
from kvtrace.queries.statistics import RESAMPLES, RULE, Difference
from kvtrace.queries.text import inert, rounded
from kvtrace.reports import document as doc
from kvtrace.reports.compare import Comparison, Row, verdict
from kvtrace.reports.gates import Judgement, as_junit
from kvtrace.reports.html import page
from kvtrace.reports.markdown import markdown
from kvtrace.reports.report import check_folder, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "compare.html"
JUNIT = "gates.xml"
GATE_COLUMNS = ("fails if", "run", "difference from A", "verdict", "reason")
READING = (
    "Intervals are over the requests of these very runs. They do not know how much a run differs from its own "
    "repetition: record each setup twice and compare those, too, before believing a small difference."
)
METHOD = (
    "A run's number is taken over all its requests or steps; the difference over the pairs alone, so it may not be "
    "that of the two numbers. `better` and `worse` say that the interval leaves out zero; `unclear`, that it does not.",
    f"The interval holds the middle 95% of the differences in {RESAMPLES:,} bootstrap samples of the pairs, drawn with "
    "a fixed seed: requests are drawn with both their values. Where sessions made the pairs, whole sessions are drawn, "
    "for turns of one are no independent observations. For few units it is widened as Student's t is. "
    f"{RULE}; metrics that have one value a run have none.",
)

_MARKS: dict[str, doc.Mark] = {"better": "better", "worse": "worse"}

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

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a table's row."""
        return astuple(self)


def lines(comparison: Comparison, other: int) -> list[Line]:
    """The metrics of run number `other` (from 1) beside those of the first, as text."""
    return [_line(row, other) for row in comparison.rows]


def write_comparison(
    comparison: Comparison, folder: Path, judgements: Sequence[Judgement] = (), *, force: bool = False
) -> Path:
    """Write the page, the Markdown, the CSV and the plots, and with gates JUnit XML; returns the page's path.

    Args:
        comparison: The runs.
        folder: Made if it is not there.
        judgements: Of gates; they stand at the top.
        force: Replace a page of that name that kvtrace did not make.

    Raises:
        KvtraceError: the folder cannot be written, or holds a page of that name that kvtrace did not make.
    """
    check_folder(folder, PAGE, force=force)
    pictures = {letter: _picture(comparison, other) for other, letter in enumerate(comparison.letters) if other}
    document = _document(comparison, pictures, judgements)
    try:
        for letter, picture in pictures.items():
            for kind, data in (picture.files if picture else {}).items():
                write_file(folder / "plots" / f"{letter}.{kind}", data)
        write_file(folder / "compare.csv", as_csv(comparison).encode())
        (folder / JUNIT).unlink(missing_ok=True)
        if judgements:
            write_file(folder / JUNIT, as_junit(judgements, comparison))
        write_file(folder / "compare.md", markdown(document).encode())
        write_file(folder / PAGE, page(document).encode())
    except OSError as error:
        raise KvtraceError(f"{folder}: cannot be written: {error.strerror or error}; choose another with -o") from error
    return folder / PAGE


def _document(
    comparison: Comparison, pictures: dict[str, doc.Picture | None], judgements: Sequence[Judgement]
) -> doc.Document:
    fair = doc.Section("Is it fair?", "fair", [doc.Items(comparison.warnings, "warning")])
    return doc.Document(
        title=f"{len(comparison.names)} runs side by side",
        lead="Each run against the first, A.",
        blocks=[
            doc.Panel(_runs(comparison)),
            *([_gates(judgements)] if judgements else []),
            *([fair] if comparison.warnings else []),
            doc.Paragraph([READING], "hint"),
            *(_section(comparison, other, pictures[comparison.letters[other]]) for other in _others(comparison)),
            _metrics(comparison),
        ],
        footer=f"Made by kvtrace {__version__}.",
        window_title=" against ".join(comparison.names),
    )


def _gates(judgements: Sequence[Judgement]) -> doc.Section:
    """The verdicts of the gates."""
    marks: dict[str, doc.Mark] = {"passed": "better", "failed": "worse"}
    rows = [
        [*map(doc.Words, cells[:-2]), doc.Cell(doc.Words(cells[-2]), marks.get(cells[-2], "")), doc.Words(cells[-1])]
        for cells in map(gate_cells, judgements)
    ]
    return doc.Section("Gates", "gates", [doc.text_table(GATE_COLUMNS, rows)])


def gate_cells(judgement: Judgement) -> tuple[str, str, str, str, str]:
    """A row of `GATE_COLUMNS`."""
    return judgement.gate.text, judgement.letter, judgement.change, judgement.verdict, judgement.reason


def _others(comparison: Comparison) -> range:
    return range(1, len(comparison.names))


def _runs(comparison: Comparison) -> list[doc.Block]:
    """The runs and the settings in which they differ."""
    paired = ["", *(pairing.description for pairing in comparison.pairings)]
    rows = [
        (doc.Words(letter), name, doc.Code(command), doc.Words(pairs))
        for letter, name, command, pairs in zip(
            comparison.letters, comparison.names, comparison.commands, paired, strict=True
        )
    ]
    settings = [(doc.Words(setting.name), *setting.values) for setting in comparison.settings]
    return [
        doc.text_table(("run", "trace", "command", "requests paired with A's"), rows),
        doc.text_table(("setting that differs", *comparison.letters), settings)
        if settings
        else doc.Paragraph(["All recorded settings are the same."], "hint"),
    ]


def _section(comparison: Comparison, other: int, picture: doc.Picture | None) -> doc.Section:
    """A run against the first: the plot of its differences, and the table."""
    letter = comparison.letters[other]
    repeat = f"{letter} has A's command and settings: these differences are what repeating a run does by itself."
    columns = [
        *(doc.Column(name) for name in ("metric", "unit", "better")),
        *(doc.Column(name, number=True) for name in ("A", letter, "difference", "change", "95% interval", "pairs")),
        doc.Column(f"{letter} is"),
    ]
    rows = [
        [*map(doc.Words, line.cells[:-1]), doc.Cell(doc.Words(line.verdict), _MARKS.get(line.verdict, ""))]
        for line in lines(comparison, other)
    ]
    caption = [f"{comparison.pairings[other - 1].description}. As CSV: ", doc.File("compare.csv")]
    drawn = [doc.Figure(picture, f"plots/{letter}", f"Relative differences of {letter} from A")] if picture else []
    return doc.Section(
        f"{letter} against A",
        f"against-{letter}",
        [
            *([doc.Paragraph([repeat])] if comparison.repeats[other - 1] else []),
            doc.Panel([*drawn, doc.Table(columns, rows), doc.Paragraph(caption, "caption")]),
        ],
    )


def _metrics(comparison: Comparison) -> doc.Section:
    """The meaning of every metric, and how its numbers and intervals are computed."""
    rows = [
        (
            *(doc.Words(metric.name), doc.Words(metric.unit), doc.Words(metric.meaning), doc.Code(metric.query)),
            doc.Words(", ".join(f"`{column}`" for column in metric.columns)),
            doc.Words(metric.statistic + (" over requests" if metric.paired else "")),
        )
        for metric in (row.metric for row in comparison.rows)
    ]
    table = doc.text_table(("metric", "unit", "meaning", "query", "columns", "a run's number"), rows)
    return doc.Section("How it is computed", "metrics", [*(doc.Paragraph([doc.Words(text)]) for text in METHOD), table])


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
        colour = colours.get(verdict(found, row.metric.better), "0.45")
        if found.interval:
            ends = [100 * found.interval.low / found.base, 100 * found.interval.high / found.base]
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


def _picture(comparison: Comparison, other: int) -> doc.Picture | None:
    """The plot of a run's differences, if there are any to draw."""
    drawn = any((found := row.differences[other - 1]) and _drawable(found) for row in comparison.rows)
    return doc.Picture({"svg": draw_bytes(forest(comparison, other), "svg")}) if drawn else None


def _line(row: Row, other: int) -> Line:
    found, metric = row.differences[other - 1], row.metric
    span = found.interval if found else None
    return Line(
        name=metric.name,
        unit=metric.unit,
        better=metric.better or "",
        base=rounded(row.values[0]),
        other=rounded(row.values[other]),
        difference=rounded(found.value, "+") if found else "-",
        change=_percent(found.relative) if found else "-",
        interval=f"{rounded(span.low, '+')} .. {rounded(span.high, '+')}" if span else "-",
        pairs=f"{found.pairs:,}" if found and found.pairs else "-",
        verdict=verdict(found, metric.better) if found else "",
    )


def _csv_difference(found: Difference | None, better: str | None) -> list[object]:
    if found is None:
        return [None] * 7
    span = found.interval
    ends = [span.low, span.high] if span else [None, None]
    relative = found.relative if math.isfinite(found.relative) else None
    return [found.value, relative, *ends, found.pairs, span.units if span else None, verdict(found, better)]


def _percent(share: float) -> str:
    return f"{share * 100:+.1f}%" if math.isfinite(share) else "-"


def heading(comparison: Comparison) -> list[str]:
    """Lines of text before the tables: the runs, and the settings in which they differ."""
    return [
        *(f"{letter}: {inert(name)}" for letter, name in zip(comparison.letters, comparison.names, strict=True)),
        *(f"{setting.name}: {_values(comparison, setting.values)}" for setting in comparison.settings),
    ]


def _values(comparison: Comparison, values: tuple[str, ...]) -> str:
    return ", ".join(f"{letter} {inert(value)}" for letter, value in zip(comparison.letters, values, strict=True))
