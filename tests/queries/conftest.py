"""Traces made of SQL."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pytest

from kvtrace.ingest.schema.trace import fill_stored
from tests.synthetic import build_small
from tests.traces import write_trace

MakeTrace = Callable[[str], Path]


@pytest.fixture(scope="session")
def empty_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schema and the trace version. It is made once, for making it takes longer than most queries do."""
    return write_trace(tmp_path_factory.mktemp("empty") / "trace.duckdb")


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with rows for every query."""
    path = tmp_path_factory.mktemp("synthetic") / "trace.duckdb"
    build_small(path)
    return path


@pytest.fixture
def make_trace(tmp_path: Path, empty_trace: Path) -> MakeTrace:
    """Make a trace file: the schema, the trace version, then the given SQL."""

    def make(sql: str = "") -> Path:
        path = tmp_path / "trace.duckdb"
        shutil.copyfile(empty_trace, path)
        if sql:
            with duckdb.connect(str(path)) as connection:
                connection.execute(sql)
                fill_stored(connection)
        return path

    return make


def values(rows: Sequence[tuple[object, ...]]) -> str:
    """Rows of numbers, plain words and None as SQL: one INSERT of thousands takes a tenth of as many of one."""
    return ", ".join(str(tuple(row)).replace("None", "NULL") for row in rows)
