"""An ASOF join written without one gives the same rows: both forms run in DuckDB, which has it."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.errors import UnsupportedError

from kvtrace.queries.backends.asof import without_asof

KEY = st.none() | st.integers(0, 2)
TIME = st.none() | st.integers(0, 9)
LEFT = st.lists(st.tuples(KEY, TIME), max_size=12)
RIGHT = st.lists(st.tuples(KEY, TIME), max_size=8, unique=True)  # of equal rows, either may be met


def rewritten(sql: str) -> str:
    tree = sqlglot.parse_one(sql, read="duckdb")
    for select in list(tree.find_all(exp.Select)):
        without_asof(select)
    assert "ASOF JOIN" not in tree.sql("duckdb")
    return tree.sql("duckdb")


@settings(max_examples=60)
@given(
    left=LEFT,
    right=RIGHT,
    comparison=st.sampled_from(["l.t >= r.t", "l.t > r.t", "l.t <= r.t", "l.t < r.t", "r.t >= l.t", "r.t < l.t"]),
    side=st.sampled_from(["", "LEFT"]),
)
def test_every_row_meets_the_same_row(
    left: list[tuple[int, int]], right: list[tuple[int, int]], comparison: str, side: str
) -> None:
    sql = f"SELECT l.id, r.id AS met FROM l ASOF {side} JOIN r ON r.k = l.k AND {comparison} ORDER BY l.id"
    with duckdb.connect() as connection:
        for name, rows in (("l", left), ("r", right)):
            connection.execute(f"CREATE TABLE {name} (id INTEGER, k INTEGER, t INTEGER)")
            if rows:
                connection.executemany(
                    f"INSERT INTO {name} VALUES (?, ?, ?)", [(number, *row) for number, row in enumerate(rows)]
                )
        assert connection.sql(rewritten(sql)).fetchall() == connection.sql(sql).fetchall()


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("SELECT l.t, k FROM l ASOF JOIN r ON l.k = r.k AND l.t >= r.t", "column k .* needs its table's name"),
        ("SELECT l.t FROM l JOIN q ON true ASOF JOIN r ON l.k = r.k AND l.t >= r.t", "must be the first join"),
        ("SELECT l.t FROM l ASOF JOIN r ON l.t >= r.t", "equations and one comparison"),
        ("SELECT l.t FROM l ASOF JOIN r USING (k, t)", "equations and one comparison"),
    ],
)
def test_what_would_go_wrong_is_refused(sql: str, complaint: str) -> None:
    with pytest.raises(UnsupportedError, match=complaint):
        rewritten(sql)
