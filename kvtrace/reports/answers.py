"""The answer of every canned query to one trace: its rows, its plot, or why there is none."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvtrace.errors import KvtraceError
from kvtrace.queries import Query, Trace, catalogue
from kvtrace.queries.missing import advice, made_of
from kvtrace.queries.plotting import draw_bytes, has_plot, shows_something
from kvtrace.queries.text import inert
from kvtrace.queries.writers import Limited, write_csv
from kvtrace.reports.document import Picture

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_SVG_BYTES = 400_000
"""A drawing with more marks than that holds goes into the page as pixels; its SVG lies beside the page."""


@dataclass(frozen=True)
class Answer:
    """A query's answer: the first rows, all of them as CSV, and the plot.

    `problem` says in a sentence what went wrong with the plot; None if nothing did.
    """

    query: Query
    numeric: tuple[bool, ...]
    """Columns that are set to the right."""

    rows: list[tuple[Any, ...]]
    total: int
    worst: str
    """The column in which the rows are the greatest, the greatest first; empty: they are the first."""

    csv: bytes = field(repr=False)
    picture: Picture | None
    problem: str | None
    seconds: float

    @property
    def cut(self) -> bool:
        """There are more rows than are shown."""
        return self.total > len(self.rows)


@dataclass(frozen=True)
class Unanswered:
    """A query without an answer, and what would give it one."""

    query: Query
    missing: tuple[str, ...]
    why: list[str]
    failed: bool = False


def answers(trace: Trace, rows: int, queries: Iterable[Query] | None = None) -> Iterator[Answer | Unanswered]:
    """Answers with at most `rows` rows to show, of all queries in the catalogue's order. One that fails is said so."""
    source = made_of(trace)
    for query in catalogue().values() if queries is None else queries:
        try:
            yield _answer_or_why_not(trace, query, rows, source)
        except KvtraceError as error:
            yield Unanswered(query, (), [f"it failed: {' '.join(str(error).split())}"], failed=True)


def _answer_or_why_not(trace: Trace, query: Query, rows: int, source: str | None) -> Answer | Unanswered:
    if missing := trace.missing(query.name):
        return Unanswered(query, missing, advice(missing, source))
    if required := [param.name for param in query.params if param.required]:
        values = " ".join(f"--param {name}=VALUE" for name in required)
        return Unanswered(query, (), [f"ask it with a value: `kvtrace query {query.name} TRACE {values}`"])
    return _answer(trace, query, rows)


def _answer(trace: Trace, query: Query, rows: int) -> Answer:
    began = time.perf_counter()
    from pyarrow import types

    table = trace.query(query.name, format="arrow")
    whole = io.BytesIO()
    write_csv(Limited(table.to_reader()), whole)
    worst = query.worst if table.num_rows > rows else ""
    shown = _worst_first(table, worst) if worst else table
    first = shown.slice(0, rows)
    picture, problem = _picture(trace, query) if table.num_rows else (None, None)
    return Answer(
        query=query,
        numeric=tuple(types.is_integer(column.type) or types.is_floating(column.type) for column in table.schema),
        rows=list(zip(*(column.to_pylist() for column in first.columns), strict=True)),
        total=table.num_rows,
        worst=worst,
        csv=whole.getvalue(),
        picture=picture,
        problem=problem,
        seconds=time.perf_counter() - began,
    )


def _worst_first(table: pa.Table, column: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.take(pc.sort_indices(table, sort_keys=[(column, "descending")]))


def _picture(trace: Trace, query: Query) -> tuple[Picture | None, str | None]:
    """The plot, if the query has one that shows something. A plot that fails must not take the report with it."""
    if not has_plot(query.name):
        return None, None
    try:
        figure = trace.plot(query.name)
        if not shows_something(figure):
            return None, None
        files = {"svg": draw_bytes(figure, "svg")}
        if len(files["svg"]) > LARGEST_SVG_BYTES:
            files["png"] = draw_bytes(figure, "png")
    except Exception as error:
        return None, f"The plot could not be drawn: {type(error).__name__}: {inert(str(error))}"
    return Picture(files), None
