"""Each query on its tiny trace with one of the tables it needs emptied: no error, and the empty table is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from kvtrace.ingest.schema.trace import create_schema
from kvtrace.queries import Trace, catalogue, find
from kvtrace.queries.views import views

from .conftest import MakeTrace

HERE = Path(__file__).parent
VIEWS = {view.name for view in views()}
NEEDS = [(query.name, table) for query in catalogue().values() for table in query.needs if table not in VIEWS]


@pytest.fixture(scope="module")
def empty() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        create_schema(connection)
        yield connection


@pytest.mark.parametrize(("name", "table"), NEEDS, ids=lambda value: value)
def test_a_query_survives_a_missing_stream(name: str, table: str, empty: duckdb.DuckDBPyConnection) -> None:
    query = find(name)
    sql = query.sql({param.name: param.default for param in query.params})
    empty.begin()
    try:
        for statement in empty.extract_statements((HERE / name / "trace.sql").read_text()):
            empty.execute(statement).fetchall()
        assert empty.execute(f"SELECT count(*) FROM {table}").fetchall() != [(0,)], f"{name}/trace.sql has no {table}"
        empty.execute(f"DELETE FROM {table}").fetchall()
        empty.execute(sql).fetchall()
    finally:
        empty.rollback()


def test_what_is_missing_is_named_and_no_more(make_trace: MakeTrace) -> None:
    with Trace(make_trace((HERE / "kv-bandwidth" / "trace.sql").read_text() + "DELETE FROM kv_layer;")) as trace:
        assert trace.missing("kv-bandwidth") == ("kv_layer",)
        assert trace.missing("kv-reads-writes") == ()
