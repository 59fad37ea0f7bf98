"""Traces made of SQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from kvtrace.ingest.schema import TRACE_VERSION, create_schema

MakeTrace = Callable[[str], Path]


@pytest.fixture
def make_trace(tmp_path: Path) -> MakeTrace:
    """Make a trace file: the schema, the trace version, then the given SQL."""

    def make(sql: str = "") -> Path:
        path = tmp_path / "trace.duckdb"
        with duckdb.connect(str(path)) as connection:
            create_schema(connection)
            connection.execute(f"INSERT INTO run VALUES ('trace_version', '{TRACE_VERSION}')")
            if sql:
                connection.execute(sql)
        return path

    return make
