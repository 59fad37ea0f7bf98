"""A plot a figure, over the axis that is not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvtrace.lab.report import charts
from kvtrace.lab.report.parts import Part
from kvtrace.lab.results import Result
from kvtrace.queries.plotting import draw_bytes
from kvtrace.reports.document import Block, Figure, Picture
from kvtrace.reports.report import write_file


def plots(study: str, results: Sequence[Result], compare: str | None, target: Path) -> Iterator[Part]:
    """The plots; their pictures are written beside the report."""
    figures: list[Block] = []
    for metric, text in charts.FIGURES.items():
        if (figure := charts.draw(results, compare, metric)) is not None:
            picture = Picture({"svg": draw_bytes(figure, "svg")})
            write_file(target / f"{study}-{metric}.svg", picture.files["svg"])
            figures.append(Figure(picture, f"{study}-{metric}", text))
    if figures:
        yield "Plots", figures
