"""Writes the event reference page from the declarations: `python -m kvtrace.ingest.reference > docs/events.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import duckdb

from kvtrace.events import EVENTS, Field
from kvtrace.ingest.schema.declare import event_columns
from kvtrace.ingest.schema.trace import ALL_ENUMS, TABLES, create_schema
from kvtrace.ingest.views import views

_HEAD = """\
# Events and tables

Generated from the declarations by `make docs`; a test compares the two. What is declared once in `kvtrace/events.py`
is the capture record, the DuckDB table and this page.

Times are int64 nanoseconds since the UNIX epoch. A column without a value is NULL. In a trace, `DESCRIBE` and the
comments (`SELECT * FROM duckdb_columns()`) say the same as this page.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([_HEAD, *_events(), *_tables(), *_views(), *_enums()]).rstrip() + "\n"


def _events() -> Iterator[str]:
    yield "## Events\n"
    for event in EVENTS.values():
        yield f"### {event.name}\n"
        yield f"{event.doc} Recorded by the {event.scope}, {event.struct.size} bytes a record.\n"
        yield from _columns(event_columns(event))


def _tables() -> Iterator[str]:
    yield "## Derived tables\n"
    for table in TABLES:
        yield f"### {table.name}\n"
        yield f"{table.doc}\n"
        yield from _columns(table.fields)


def _views() -> Iterator[str]:
    yield "## Views\n"
    yield "Each is a file in `ingest/views/`, made of the tables above and of views before it.\n"
    types = _types()
    for view in views():
        yield f"### {view.name}{' (a table, made at ingest)' if view.stored else ''}\n"
        yield f"{view.doc}\n"
        yield "| column | type | unit | source | meaning |"
        yield "|---|---|---|---|---|"
        for column in view.columns:
            kind = types[view.name, column.name]
            meaning = column.meaning.replace("|", "/")
            yield f"| {column.name} | {kind} | {column.unit or ''} | {column.source} | {meaning} |"
        yield ""


def _types() -> dict[tuple[str, str], str]:
    """The type of each column of each table and view; of an enum, its class's name."""
    with duckdb.connect() as connection:
        create_schema(connection)
        found = connection.sql("SELECT table_name, column_name, data_type FROM duckdb_columns()").fetchall()
    names = {f"ENUM({', '.join(repr(member.name) for member in members)})": members.__name__ for members in ALL_ENUMS}
    return {(table, column): names.get(type_, type_) for table, column, type_ in found}


def _enums() -> Iterator[str]:
    yield "## Values\n"
    for members in ALL_ENUMS:
        yield f"### {members.__name__}\n"
        yield f"{(members.__doc__ or '').strip()}\n"
        yield ", ".join(f"`{member.name}`" for member in members) + "\n"


def _columns(fields: Iterable[Field]) -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for field in fields:
        kind = field.enum.__name__ if field.enum else field.sql_type
        yield f"| {field.name} | {kind} | {field.doc.replace('|', '/')} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
