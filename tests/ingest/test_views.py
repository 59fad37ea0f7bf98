"""The view files: what their headers say is so."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.events import EVENTS, PinCause
from kvtrace.ingest.build import new_trace
from kvtrace.ingest.gpu.enums import KernelCategory
from kvtrace.ingest.schema.trace import TABLES, create_schema
from kvtrace.queries.backends.translate import tables_of
from kvtrace.queries.views import View, in_order, parse, views
from tests.traces import joins

FILE = """-- A thing.
--
-- Of which there are some.
--
-- needs: step
{more}-- column: engine_id recorded | The engine.
-- column: things [blocks] derived | How many.

SELECT engine_id, count(*) AS things FROM step GROUP BY engine_id
"""


@pytest.fixture(scope="module")
def empty() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    create_schema(connection)
    return connection


def view_of(name: str) -> View:
    return next(view for view in views() if view.name == name)


@pytest.mark.parametrize("view", views(), ids=lambda view: view.name)
def test_a_view_has_the_columns_and_reads_the_tables_that_its_header_says(
    view: View, empty: duckdb.DuckDBPyConnection
) -> None:
    assert empty.sql(f"SELECT * FROM {view.name}").columns == [column.name for column in view.columns]
    assert all(column.unit == "ns" for column in view.columns if column.name.endswith("_ns") and column.unit)
    there = {*EVENTS, *(table.name for table in TABLES), *(each.name for each in views())}
    assert set(view.needs) == tables_of(view.sql) & there


def test_a_comment_tells_what_was_not_recorded(empty: duckdb.DuckDBPyConnection) -> None:
    comments = "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = 'job_turn'"
    told = dict(empty.sql(comments).fetchall())

    assert told["finished_ns"] == "When it ended; NULL if it had not when the recording did."
    assert told["turn_number"].endswith(" Derived.")


def test_the_lists_written_out_in_sql_are_those_of_the_enums() -> None:
    categories = [f"{category.name}_ns" for category in KernelCategory]
    assert [column.name for column in view_of("step_gpu").columns if column.name in categories] == categories

    sql = view_of("block_hold").sql
    places = [sql.index(f"THEN '{cause.name}'") for cause in PinCause]
    assert places == sorted(places)


def test_a_view_stands_behind_those_it_needs() -> None:
    names = [view.name for view in views()]
    for view in views():
        assert all(names.index(need) < names.index(view.name) for need in view.needs if need in names)

    first, second = (parse(name, FILE.format(more="")) for name in ("first", "second"))
    turned = {"step": first, "first": second}  # each needs `step`; let `step` need itself
    with pytest.raises(KvtraceError, match="need each other"):
        in_order(turned | {"step": View("step", "", ("step",), (), stored=False, sql="")})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("-- made: sometimes\n", "`made:` is `at ingest`"),
        ("-- group: Run\n", "expected `needs:`, `made:`, `columns:`, `column:`"),
        ("-- column: odd [acres] derived | What.\n", "a unit of ns"),
        ("-- column: odd guessed | What.\n", "a source of recorded"),
    ],
)
def test_a_header_that_does_not_follow_the_format_is_refused(more: str, message: str) -> None:
    with pytest.raises(KvtraceError, match=message):
        parse("thing", FILE.format(more=more))


def test_views_that_are_made_at_ingest_never_compare_all_rows_in_an_asof_join(tmp_path: Path) -> None:
    """DuckDB would where it expects few rows: for one, of the holders of blocks in a trace that is empty yet."""
    with new_trace(tmp_path / "trace.duckdb") as connection:
        told = joins(connection.execute(f"EXPLAIN {view_of('block_hold').sql}").fetchall())
    assert "ASOF_JOIN" in told
    assert "NESTED_LOOP_JOIN" not in told
