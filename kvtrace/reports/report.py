"""Writes the report on one trace: a page, the same as Markdown, a CSV file a question and a picture a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.pages import is_page
from kvtrace.queries import Param, Query, Trace, catalogue, grouped
from kvtrace.queries.findings import Finding, find_findings, without_findings
from kvtrace.queries.plotting import FORMATS
from kvtrace.reports import document as doc
from kvtrace.reports.answers import Answer, Unanswered, answers
from kvtrace.reports.head import Head, read_head
from kvtrace.reports.html import page
from kvtrace.reports.markdown import markdown
from kvtrace.reports.tiles import tiles

ROWS = 20
"""Rows of an answer that the page shows."""

PAGE = "report.html"
MARKDOWN = "report.md"
SUMMARY = "run-summary"
"""The query whose one row stands at the top."""

_NO_ROWS = "No rows: the trace has the tables, but nothing in them that the question asks about."

SIGNS = {"recorded": "●", "derived": "◐", "inferred": "○"}
"""Signs for a column's source in a table's head."""


@dataclass(frozen=True)
class Made:
    """A report that was written: its page, and the queries with and without an answer."""

    page: Path
    answered: list[Answer]
    unanswered: list[Unanswered]


def write_report(
    path: Path, folder: Path, rows: int = ROWS, sections: Sequence[doc.Section] = (), *, force: bool = False
) -> Made:
    """Write the report on the trace at `path` into `folder`, in place of an earlier one.

    Args:
        path: The trace.
        folder: Made if it is not there.
        rows: Most rows of an answer in the page.
        sections: Further ones, behind what cost most.
        force: Replace files of the report's names that kvtrace did not make.

    Raises:
        KvtraceError: no trace, or the folder holds something else of the report's name, or cannot be written.
    """
    check_folder(folder, PAGE, force=force)
    with Trace(path) as trace:
        head = read_head(trace)
        cost = _cost(trace)
        found = list(answers(trace, rows))
    answered = [item for item in found if isinstance(item, Answer)]
    unanswered = [item for item in found if isinstance(item, Unanswered)]
    document = _document("/".join(path.resolve().parts[-2:]), head, [cost, *sections], answered, unanswered)
    try:
        _clear(folder)
        for item in answered:
            if item.total:  # the page links no others
                write_file(folder / "csv" / f"{item.query.name}.csv", item.csv)
            for kind, data in (item.picture.files if item.picture else {}).items():
                write_file(folder / "plots" / f"{item.query.name}.{kind}", data)
        write_file(folder / MARKDOWN, markdown(document).encode())
        write_file(folder / PAGE, page(document).encode())
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


def write_file(path: Path, data: bytes) -> None:
    """Write a file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _clear(folder: Path) -> None:
    """Remove an earlier report's answers: one that is not given any more must not lie there as if it were."""
    for name in catalogue():
        (folder / "csv" / f"{name}.csv").unlink(missing_ok=True)
        for kind in FORMATS:
            (folder / "plots" / f"{name}.{kind}").unlink(missing_ok=True)


def _document(
    name: str, head: Head, sections: Sequence[doc.Section], answered: Sequence[Answer], unanswered: Sequence[Unanswered]
) -> doc.Document:
    by_name = {item.query.name: item for item in answered}
    signs = ", ".join(f"{sign} {source}" for source, sign in SIGNS.items())
    return doc.Document(
        title=head.title or name,
        lead=doc.Words(
            f"What happened to the KV cache in this run: {len(answered)} questions answered by `kvtrace report`, "
            f"{len(unanswered)} that this recording cannot answer."
        ),
        blocks=[
            *_cards(by_name.get(SUMMARY)),
            *_notes(head, "warning"),
            *sections,
            *_head(head, name),
            *_notes(head, "info"),
            doc.Paragraph([f"In the tables: {signs}. Recorded values are copied from the trace, derived ones computed "
                           "from it, inferred ones guessed by a rule. A dash is no value."], "hint"),
            *(
                doc.Section(doc.Words(group), f"group-{number}", [_answer(by_name[query.name]) for query in queries])
                for number, (group, queries) in enumerate(grouped(item.query for item in answered).items())
            ),
            *_unanswered(unanswered),
        ],
        footer=f"Made by kvtrace {__version__} from {name}.",
    )  # fmt: skip


def _head(head: Head, name: str) -> Iterator[doc.Block]:
    """The run's facts and its engines' settings."""
    pairs = [*head.facts, ("Trace", name)]
    facts = doc.Facts([(fact, doc.Code(value) if fact == "Command" else value) for fact, value in pairs])
    settings = doc.Table([doc.Column(name) for name in head.engine_names], head.engines)
    yield doc.Panel([facts, *([doc.Details("Settings of each engine", [settings])] if head.engines else [])])


def _notes(head: Head, level: Literal["warning", "info"]) -> Iterator[doc.Block]:
    """Notes on what its recording lacks."""
    if texts := [note["text"] for note in head.notes if note["level"] == level]:
        yield doc.Items(texts, level)


def _cost(trace: Trace) -> doc.Section:
    """Findings, the most expensive first, each with its evidence."""
    try:
        found = find_findings(trace)
        instead = without_findings(trace)
    except KvtraceError as error:
        return doc.Section(doc.Words("What cost most"), "findings", [doc.Paragraph([f"It failed: {error}"], "problem")])
    rows: list[tuple[Any, ...]] = [
        (
            finding.text,
            doc.Words(f"`{finding.evidence}`{_worst(finding)}"),
            doc.Words(finding.basis),
            doc.Words(finding.remedy),
        )
        for finding in found
    ]
    table = doc.Table(
        [doc.Column("finding"), doc.Column("evidence"), doc.Column("known"), doc.Column("what to try")], rows
    )
    return doc.Section(doc.Words("What cost most"), "findings", [table] if rows else [doc.Paragraph([instead])])


def _worst(finding: Finding) -> str:
    return f"; the worst: `kvtrace explain {finding.worst}`" if finding.worst else ""


def _cards(summary: Answer | None) -> Iterator[doc.Block]:
    """The run's own numbers, each with its unit."""
    if summary is not None and summary.rows:
        names = (column.name for column in summary.query.columns)
        yield doc.Cards(list(tiles(dict(zip(names, summary.rows[0], strict=True)))))


def _answer(answer: Answer) -> doc.Section:
    """A query's answer: its meaning, plot and rows, and how each number was computed."""
    query = answer.query
    blocks: list[doc.Block] = [doc.Paragraph([doc.Words(text)], "about") for text in query.description.split("\n\n")]
    blocks += [doc.Paragraph([doc.Words(f"Draws again: {figure}")], "about") for figure in query.figures]
    if answer.picture:
        blocks.append(doc.Figure(answer.picture, f"plots/{query.name}", f"Plot of {query.name}: {query.title}"))
    if answer.problem:
        blocks.append(doc.Paragraph([answer.problem], "problem"))
    blocks += _rows(answer) if answer.total else [doc.Paragraph([_NO_ROWS], "caption")]
    blocks.append(_how_computed(query, answer.seconds))
    return doc.Section(doc.Words(query.title), query.name, blocks, query.name)


def _rows(answer: Answer) -> list[doc.Block]:
    query = answer.query
    columns = [
        doc.Column(
            column.name,
            number,
            column.unit or "",
            SIGNS[column.source],
            f"{column.meaning} ({column.source})",
        )
        for column, number in zip(query.columns, answer.numeric, strict=True)
    ]
    whole = f"{answer.total} row{'s' if answer.total != 1 else ''}, also as "
    which = f"The {'' if answer.worst else 'first '}{len(answer.rows)} of {answer.total:,} rows"
    first = f"{which}{f' with the most {answer.worst}' if answer.worst else ''}; all of them: "
    plot = [", the plot: ", doc.File(f"plots/{query.name}.svg")] if answer.picture else []
    caption = [first if answer.cut else whole, doc.File(f"csv/{query.name}.csv"), *plot]
    return [doc.Table(columns, answer.rows), doc.Paragraph(caption, "caption")]


def _how_computed(query: Query, seconds: float) -> doc.Details:
    columns = [
        (
            doc.Code(column.name),
            doc.Words(column.unit or ""),
            doc.Words(f"{SIGNS[column.source]} {column.source}"),
            doc.Words(column.meaning),
        )
        for column in query.columns
    ]
    blocks: list[doc.Block] = [doc.text_table(("column", "unit", "source", "meaning"), columns)]
    if query.params:
        params = [
            (doc.Code(param.name), doc.Words(param.type), doc.Code(_default(param)), doc.Words(param.meaning))
            for param in query.params
        ]
        blocks.append(doc.Paragraph(["Parameters, at their defaults:"]))
        blocks.append(doc.text_table(("parameter", "type", "value", "meaning"), params))
    blocks += [
        doc.Paragraph([f"SQL, over {', '.join(query.needs)}; it took {seconds:.2f} s:"]),
        doc.Listing(query.body),
        doc.Paragraph([doc.Words(f"Again: `kvtrace query {query.name} TRACE --limit 0`")], "hint"),
    ]
    return doc.Details("How each number was computed", blocks)


def _default(param: Param) -> str:
    return "NULL" if param.default is None else str(param.default)


def _unanswered(unanswered: Sequence[Unanswered]) -> Iterator[doc.Section]:
    if not unanswered:
        return
    rows = [
        (
            doc.Code(item.query.name),
            doc.Words(item.query.title),
            doc.Words(", ".join(item.missing)),
            doc.Words("; ".join(item.why)),
        )
        for item in unanswered
    ]
    why = doc.Paragraph(["These ask about things that are not in this recording."])
    table = doc.text_table(("query", "question", "without rows", "how to get an answer"), rows)
    yield doc.Section("Not answered", "unanswered", [why, table])
