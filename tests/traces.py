"""Traces written by hand: the schema, the trace version, then SQL. The schema is made once a process."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import duckdb

from kvtrace.ingest.schema import trace as schema

create_schema = schema.create_schema


def write_trace(path: Path, *statements: str) -> Path:
    """Write a trace file at `path` and return it."""
    with duckdb.connect(str(path)) as connection:
        schema.create_schema(connection)
        connection.execute(f"INSERT INTO run VALUES ('trace_version', '{schema.TRACE_VERSION}')")
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement)
        schema.fill_stored(connection)
        connection.execute("COMMIT")
    return path


def joins(plan: object) -> set[str]:
    """Kinds of the joins in what EXPLAIN says, as DuckDB 1.5 writes them."""
    return set(re.findall(r"(?:NESTED_LOOP|ASOF|HASH)_JOIN", str(plan).upper().replace(" ", "_")))


def copy_schemas() -> None:
    """Let `create_schema` copy an empty trace: its thousand comments are half of a small ingest's time."""
    folder = tempfile.TemporaryDirectory()

    def copied(connection: duckdb.DuckDBPyConnection) -> None:
        empty = Path(folder.name) / "empty.duckdb"
        if not empty.exists():
            with duckdb.connect(str(empty)) as made:
                create_schema(made)
        try:
            connection.execute(f"ATTACH '{empty}' AS empty_trace (READ_ONLY)")
        except duckdb.PermissionException:  # the connection opens no files
            create_schema(connection)
            return
        [(target,)] = connection.execute("SELECT current_database()").fetchall()
        connection.execute(f'COPY FROM DATABASE empty_trace TO "{target}"')
        connection.execute("DETACH empty_trace")

    schema.create_schema = copied
