"""Writes the event reference page from the declarations: `python -m kvtrace.ingest.reference > docs/events.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import duckdb

from kvtrace.events import EVENTS, Field
from kvtrace.ingest.schema.declare import event_columns
from kvtrace.ingest.schema.trace import ALL_ENUMS, TABLES, create_schema
from kvtrace.queries.views import views

KEYS = (
    (("process_id",), "process", "A recording process, of an engine, a worker or an API server."),
    (("engine_id",), "engine", "An engine: the process of its scheduler."),
    (("engine_id", "step"), "step", "A scheduler step; workers' events have the step of their engine, too."),
    (("request",), "request", "A request of a client; with n > 1, also each of its samples."),
    (("engine_id", "step", "request"), "step_request", "A request's share of a step."),
    (("session", "turn"), "job_turn", "A turn of a job, as the client tagged it. NULL without tags."),
    (("engine_id", "kv_group"), "kv_group", "A KV cache group: layers that share block tables."),
    (("engine_id", "block_id"), "", "A block of the pool; ids are reused, so join by time, too."),
    (("block_hash",), "", "The content of a block and of all before it; the same in tiers and in vLLM's KV events."),
    (("engine_id", "transfer"), "transfer", "A copy to or from an offload tier; a row for each worker that copied."),
    (("engine_id", "pin"), "pin", "Blocks that a policy or connector keeps; a row for each block."),
    (("process_id", "layer"), "kv_layer", "A layer of a worker."),
    (("source_id",), "source", "A file of another tool."),
    (("activity_id",), "gpu_activity", "A kernel, copy or memset in a profile."),
    (("call_id",), "gpu_call", "A call of the CUDA runtime in a profile."),
    (("kernel_name_id",), "kernel_name", "A kernel's name and category."),
)
"""Keys that tables join by: columns, the table or view that says what they stand for, and what that is."""

_MANY = 30
"""Keys of more tables than that are counted, not listed."""

_HEAD = """\
# Events and tables

Generated from the declarations by `make docs`; a test compares the two. What is declared once in `kvtrace/events.py`
is the capture record, the DuckDB table and this page.

Times are int64 nanoseconds since the UNIX epoch. A column without a value is NULL. In a trace, `DESCRIBE` and the
comments (`SELECT * FROM duckdb_columns()`) say the same as this page.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([_HEAD, *_joins(), *_events(), *_tables(), *_views(), *_enums()]).rstrip() + "\n"


def _joins() -> Iterator[str]:
    types = _types()
    tables = sorted({table for table, _ in types})
    yield "## How they join\n"
    yield "Join rows by the columns they share: `FROM step_request JOIN step USING (engine_id, step)`.\n"
    yield "| columns | identify | described in | tables and views that have them |"
    yield "|---|---|---|---|"
    for key, owner, meaning in KEYS:
        kinds = {name: types[owner or "block_event", name] for name in key}
        found = [table for table in tables if table != owner and all(types.get((table, n)) == kinds[n] for n in kinds)]
        where = f"{len(found)} tables and views" if len(found) > _MANY else ", ".join(map(_link, found))
        yield f"| {', '.join(f'`{name}`' for name in key)} | {meaning} | {owner and _link(owner)} | {where} |"
    yield ""
    yield "Events without a step join to the step before them in time:\n"
    yield "```sql"
    yield "SELECT b.op, b.block_id, s.step"
    yield "FROM block_event b ASOF JOIN step_schedule s ON b.engine_id = s.engine_id AND b.time_ns >= s.start_ns"
    yield "```\n"


def _link(table: str) -> str:
    stored = {view.name for view in views() if view.stored}
    return f"[{table}](#{table}{'-a-table-made-at-ingest' if table in stored else ''})"


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
    yield "Each is a file in `queries/views/`, made of the tables above and of views before it.\n"
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
