"""Views of a trace, a file each: what is derived from the tables, once.

A view is a file `NAME.sql` in this folder: a header of comments, then one SELECT.

    -- A row: what it is, in one sentence.
    --
    -- A few lines on what is computed, from what, and what is left out.
    --
    -- needs: TABLE, TABLE, VIEW
    -- made: at ingest
    -- columns: EVENT
    -- column: NAME [UNIT] SOURCE | Meaning. A continued line is
    --     indented by four more spaces.

`needs` are the tables and views that the SELECT reads; views are made in that order. `made: at ingest` stores the rows
in a table when all others are filled, for what takes too long at each question; `made: at ingest if CONDITION`, an SQL
expression, makes none where it does not hold. `columns` stands for all columns of an
event. Types are those that the SELECT gives. SOURCE is `recorded`, `derived` or `inferred`, as in the queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import resources

from kvtrace import sql_header
from kvtrace.errors import KvtraceError
from kvtrace.events import EVENTS, Event
from kvtrace.sql_header import Column

_KINDS = ("needs", "made", "columns", "column")


@dataclass(frozen=True)
class View:
    """A view: its documentation and its SELECT. One that is `stored` is a table, filled at the end of ingest."""

    name: str
    doc: str
    needs: tuple[str, ...]
    columns: tuple[Column, ...]
    stored: bool
    sql: str = field(repr=False)
    condition: str = "true"


@cache
def views() -> tuple[View, ...]:
    """Return the views, each behind those it needs."""
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".sql"))
    found = (parse(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8")) for file in files)
    return in_order({view.name: view for view in sorted(found, key=lambda view: view.name)})


def in_order(found: dict[str, View]) -> tuple[View, ...]:
    """Sort views so that each is behind those it needs.

    Raises:
        KvtraceError: two need each other.
    """
    needs = {view.name: [name for name in view.needs if name in found] for view in found.values()}
    try:
        return tuple(found[name] for name in TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise KvtraceError(f"views need each other: {', '.join(error.args[1])}") from error


def parse(name: str, text: str) -> View:
    """Read a view's file.

    Raises:
        KvtraceError: the header does not follow the format in this module's docstring.
    """
    file = f"{name}.sql"
    header, body = sql_header.read(file, text, _KINDS)
    made, _, condition = " ".join(header.all("made")).partition(" if ")
    if made not in ("", "at ingest"):
        raise KvtraceError(f"{file}: `made:` is `at ingest`, `at ingest if CONDITION` or left out")
    of_events = [named for event in header.names("columns") for named in _columns_of(EVENTS[event])]
    return View(
        name=name,
        doc=" ".join(header.prose),
        needs=header.names("needs"),
        columns=(
            *(Column(name, None, "recorded", doc) for name, doc in of_events),
            *(sql_header.column(file, entry) for entry in header.all("column")),
        ),
        stored=bool(made),
        sql=body,
        condition=condition or "true",
    )


def _columns_of(event: Event) -> list[tuple[str, str]]:
    return [(event.process_column, event.process_doc), *((field.name, field.doc) for field in event.fields)]
