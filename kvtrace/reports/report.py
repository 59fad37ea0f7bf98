"""Writes the report on one trace: a page, the same as Markdown, a CSV file a question and a picture a plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.queries import Column, Trace, catalogue, grouped
from kvtrace.queries.plotting import FORMATS
from kvtrace.reports.answers import Answer, Unanswered, answers
from kvtrace.reports.head import read_head
from kvtrace.reports.render import render
from kvtrace.viewer.page import is_page

ROWS = 20
"""Rows of an answer that the page shows."""

PAGE = "report.html"
MARKDOWN = "report.md"
SUMMARY = "run-summary"
"""The query whose one row stands at the top."""


@dataclass(frozen=True)
class Made:
    """Result of writing a report."""

    page: Path
    answered: list[Answer]
    unanswered: list[Unanswered]


def write_report(path: Path, folder: Path, rows: int = ROWS, *, force: bool = False) -> Made:
    """Write the report on the trace at `path` into `folder`, in place of an earlier one.

    Args:
        path: The trace.
        folder: Made if it is not there.
        rows: Most rows of an answer in the page.
        force: Replace files of the report's names that kvtrace did not make.

    Raises:
        KvtraceError: no trace, or the folder holds something else of the report's name, or cannot be written.
    """
    check_folder(folder, PAGE, force=force)
    head = read_head(path)
    with Trace(path) as trace:
        found = list(answers(trace, rows))
    answered = [item for item in found if isinstance(item, Answer)]
    unanswered = [item for item in found if isinstance(item, Unanswered)]
    by_name = {item.query.name: item for item in answered}
    groups = {
        group: [by_name[query.name] for query in queries]
        for group, queries in grouped(item.query for item in answered).items()
    }
    values = {
        "name": "/".join(path.resolve().parts[-2:]),
        "version": __version__,
        "head": head,
        "cards": _cards(by_name.get(SUMMARY)),
        "groups": groups,
        "answered": len(answered),
        "unanswered": unanswered,
    }
    try:
        _clear(folder)
        for item in answered:
            write_file(folder / "csv" / f"{item.query.name}.csv", item.csv)
            for kind, data in (item.picture.files if item.picture else {}).items():
                write_file(folder / "plots" / f"{item.query.name}.{kind}", data)
        write_file(folder / MARKDOWN, render("report.md.j2", **values).encode())
        write_file(folder / PAGE, render("report.html", **values).encode())
    except OSError as error:
        raise KvtraceError(f"{folder}: cannot be written: {error.strerror or error}; choose another with -o") from error
    return Made(folder / PAGE, answered, unanswered)


def check_folder(folder: Path, page: str, *, force: bool) -> None:
    """See that a page may be written into a folder, before any work is done.

    Raises:
        KvtraceError: it is no folder, or holds a file of the page's name that kvtrace did not make.
    """
    if folder.exists() and not folder.is_dir():
        raise KvtraceError(f"{folder} is a file; a report is a folder: name one with -o")
    if (folder / page).exists() and not force and not is_page(folder / page):
        raise KvtraceError(f"{folder / page}: exists and kvtrace did not make it; choose another -o or use --force")


def _cards(summary: Answer | None) -> list[tuple[Column, object]]:
    """The run's own numbers, each with its column."""
    if summary is None or not summary.rows:
        return []
    return list(zip(summary.query.columns, summary.rows[0], strict=True))


def _clear(folder: Path) -> None:
    """Remove an earlier report's answers: one that is not given any more must not lie there as if it were."""
    for name in catalogue():
        (folder / "csv" / f"{name}.csv").unlink(missing_ok=True)
        for kind in FORMATS:
            (folder / "plots" / f"{name}.{kind}").unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
