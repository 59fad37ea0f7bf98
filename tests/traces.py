"""Traces written by hand: the schema, the trace version, then SQL."""

from __future__ import annotations

from pathlib import Path

import duckdb

from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema
from kvtrace.ingest.views import fill_stored


def write_trace(path: Path, *statements: str) -> Path:
    """Write a trace file at `path` and return it."""
    with duckdb.connect(str(path)) as connection:
        create_schema(connection)
        connection.execute(f"INSERT INTO run VALUES ('trace_version', '{TRACE_VERSION}')")
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement)
        fill_stored(connection)
        connection.execute("COMMIT")
    return path
