"""A count in table order, written without one, gives the same numbers: both forms run in DuckDB, which keeps order."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.errors import UnsupportedError

from kvtrace.queries.backends import running
from kvtrace.queries.backends.running import in_stripes


def rewritten(sql: str) -> str:
    tree = sqlglot.parse_one(sql, read="duckdb")
    for select in list(tree.find_all(exp.Select)):
        in_stripes(select)
    return tree.sql("duckdb")


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=30),
    stripe=st.integers(1, 7),
    counted=st.sampled_from(["count(*) FILTER (taken)", "count(*)"]),
)
def test_every_row_has_the_same_count(rows: list[tuple[int, bool, bool]], stripe: int, counted: str) -> None:
    sql = f"SELECT *, ({counted} OVER (ROWS UNBOUNDED PRECEDING))::INTEGER AS n FROM t WHERE counts"
    with pytest.MonkeyPatch.context() as patch, duckdb.connect() as connection:
        patch.setattr(running, "STRIPE_ROWS", stripe)
        connection.execute("CREATE TABLE t (place INTEGER, taken BOOLEAN, counts BOOLEAN)")
        place = 0
        for step, taken, counts in rows:
            place += step
            connection.execute("INSERT INTO t VALUES (?, ?, ?)", [place, taken, counts])
        found = connection.sql(f"FROM ({rewritten(sql)}) ORDER BY place")
        wanted = connection.sql(sql)
        assert found.columns == wanted.columns
        assert found.fetchall() == wanted.fetchall()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(a) OVER (ROWS UNBOUNDED PRECEDING) FROM t",
        "SELECT count(*) OVER (ROWS UNBOUNDED PRECEDING), count(a) OVER (ROWS UNBOUNDED PRECEDING) FROM t",
        "SELECT count(*) OVER (ROWS UNBOUNDED PRECEDING) FROM t JOIN r USING (k)",
    ],
)
def test_what_would_go_wrong_is_refused(sql: str) -> None:
    with pytest.raises(UnsupportedError, match="the only one of its SELECT, and count one table"):
        rewritten(sql)


def test_a_window_with_an_order_stays() -> None:
    sql = "SELECT COUNT(*) OVER (ORDER BY a ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM t"
    assert rewritten(sql) == sqlglot.parse_one(sql, read="duckdb").sql("duckdb")
