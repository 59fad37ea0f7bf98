"""A trace with a text of one's choice in every text column, found by walking the schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema

EPOCH_NS = 1_790_000_000 * 10**9
ROWS = 2


def text_columns(connection: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[str, str]]]:
    """Columns and their types of each table, if it has one of text."""
    rows = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() JOIN duckdb_tables() USING (table_name) "
        "ORDER BY table_name, column_index"
    ).fetchall()
    found: dict[str, list[tuple[str, str]]] = {}
    for table, column, type_ in rows:
        found.setdefault(table, []).append((column, type_))
    return found


def make_marked(path: Path, mark: Callable[[str, str], str]) -> dict[str, list[str]]:
    """Write a trace of two rows a table, which belong to each other; returns the text columns of each table.

    Args:
        path: The trace.
        mark: A text for a table and column.
    """
    marked: dict[str, list[str]] = {}
    with duckdb.connect(str(path)) as connection:
        create_schema(connection)
        connection.execute("BEGIN")
        facts = ("command", "kvtrace_version", "vllm_version", "warnings", "source", "started_ns", "exit_code")
        for fact in facts:
            connection.execute("INSERT INTO run VALUES (?, ?)", [fact, mark("run", fact)])
        connection.execute("INSERT INTO run VALUES ('trace_version', ?)", [str(TRACE_VERSION)])
        for table, columns in text_columns(connection).items():
            marked[table] = [column for column, type_ in columns if type_ == "VARCHAR" and column not in _NUMBERS]
            rows = [[_value(table, *column, row, mark) for column in columns] for row in range(ROWS)]
            marks = ", ".join("?" * len(columns))
            for row in rows[: 1 if table in _SINGLE else ROWS]:
                connection.execute(f'INSERT INTO "{table}" VALUES ({marks})', row)
        connection.execute("COMMIT")
    return {table: columns for table, columns in marked.items() if columns}


_SINGLE = ("engine", "process", "source", "kernel_name", "gpu_device", "engine_source")
_NUMBERS = ("shape", "stride")
"""Text that ingest makes of numbers."""


def _value(table: str, column: str, type_: str, row: int, mark: Callable[[str, str], str]) -> Any:
    if type_ == "VARCHAR":
        return "[2, 8]" if column in _NUMBERS else mark(table, column)
    if type_.startswith("ENUM"):
        return type_.split("'")[1 + 2 * (row if type_.count("'") > 2 else 0)]
    if type_ == "BOOLEAN":
        return True
    if column.endswith("_ns"):
        times = ("arrival", "queued", "submitted", "start", "scheduled", "first_token", "finished", "end")
        place = next((at for at, name in enumerate(times) if column.startswith(name)), 4)
        return [EPOCH_NS] if type_.endswith("[]") else EPOCH_NS + 1_000_000 * (place + row)
    return {"BIGINT[]": [1], "DOUBLE": 0.5, "UBIGINT": 7}.get(type_, row if column in ("turn", "step") else 1)
