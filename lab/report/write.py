"""Puts a report together and writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.lab.kept import RESULTS, write_kept
from kvtrace.lab.matrix import text_of
from kvtrace.lab.report.cells import cells, repeats
from kvtrace.lab.report.differences import comparison, comparison_of_runs, fairness
from kvtrace.lab.report.parts import axes_and_repeat, rank
from kvtrace.lab.report.passes import over_time, passes
from kvtrace.lab.report.phases import cold_and_warm, orders
from kvtrace.lab.report.plots import plots
from kvtrace.lab.report.predicted import draws, predictions
from kvtrace.lab.report.regression import regression
from kvtrace.lab.report.side_by_side import side_by_side
from kvtrace.lab.report.turns import turns
from kvtrace.lab.results import MADE, MADES, Result
from kvtrace.lab.sources import load_sweeps
from kvtrace.reports.document import Document, Paragraph, Section, Words
from kvtrace.reports.html import page
from kvtrace.reports.markdown import markdown
from kvtrace.reports.report import write_file


def write_report(sources: Sequence[Path], target: Path) -> list[str]:
    """Write report.md, report.html, their pictures and the results; returns the warnings of the traces' readers.

    Args:
        sources: As of `load_sweeps`.
        target: The folder to write to.

    Raises:
        KvtraceError: There are no results, or the folder cannot be written.
    """
    sweeps = load_sweeps(*sources)
    results = sweeps.results
    try:
        target.mkdir(parents=True, exist_ok=True)
        studies = [_study(study, results, target) for study in sweeps.studies.values()]
        document = Document(
            title=Words("Lab report: " + ", ".join(source.resolve().name for source in sources)),
            lead=Words(
                "Latencies are those that the client saw. A job's completion time (JCT) is from when its first turn "
                "was due to the end of its last."
            ),
            blocks=studies,
            footer=f"Made by kvtrace {__version__}.",
        )
        write_file(target / "report.md", markdown(document).encode())
        write_file(target / "report.html", page(document).encode())
        write_kept(target / RESULTS, list(sweeps.studies.values()), results)
    except OSError as error:
        raise KvtraceError(f"{target} cannot be written: {error.strerror}") from error
    return [warning for result in results for warning in result.warnings]


def _study(study: dict[str, Any], results: Sequence[Result], target: Path) -> Section:
    """The section of a study; its pictures are written beside the report."""
    place = {id_: number for number, id_ in enumerate(study["cells"])}
    ran = [result for result in results if result.name in place]
    predicted = [result for result in ran if result.made == "predicted"]
    values: dict[str, list[str]] = study["axes"]
    if any(MADE in result.cell.axes for result in ran):
        values = {**values, MADE: [made for made in MADES if made in {r.made for r in ran}]}
    mine = sorted(
        ran, key=lambda result: [rank(values, axis, text_of(value)) for axis, value in axes_and_repeat(result)]
    )
    ok = [result for result in mine if result.status == "ok"]
    counted = _counted("ran", [result for result in mine if result.made == "measured"], len(place))
    if predicted:
        counted += " Not measured but predicted by replay: " + _counted("ended", predicted, len(place))
    compare = study["compare"]
    parts = [
        *predictions(mine, compare),
        *fairness(mine, compare),
        *cells(mine, list(values), compare),
        *(side_by_side(ok, compare, values) if compare else []),
        *repeats(ok),
        *draws(ok),
        *(comparison(ok, compare, values[compare]) if compare else []),
        *(comparison_of_runs(ok, compare, values[compare]) if compare else []),
        *passes(ok),
        *turns(ok),
        *cold_and_warm(ok),
        *orders(ok),
        *regression(ok),
        *over_time(ok),
        *plots(study["name"], ok, compare, target),
    ]
    name = study["name"]
    sections = [Section(title, f"{name}-{number}", blocks) for number, (title, blocks) in enumerate(parts)]
    return Section(
        Words(name),
        name,
        [Paragraph([counted]), *sections],
    )


def _counted(did: str, results: Sequence[Result], of: int) -> str:
    ok = len({result.name for result in results if result.status == "ok"})
    ended = len({result.name for result in results})
    missing = of - ended
    text = f"{ok} of {of} cells {did}, {ended - ok} failed"
    return text + (f", {missing} have not run yet." if missing else ".")
