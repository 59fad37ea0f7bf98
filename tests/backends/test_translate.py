"""DuckDB's SQL as Spark's: what the two understand differently."""

from __future__ import annotations

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.queries import catalogue
from kvtrace.queries.backends.lake import VIEWS
from kvtrace.queries.backends.translate import steps_to_spark, tables_of


@pytest.mark.parametrize(
    ("duckdb", "spark"),
    [
        ("SELECT a // b AS c FROM t", "SELECT `a` DIV `b` AS `c` FROM `t`"),
        ("SELECT x[1], x[i] FROM t", "SELECT TRY_ELEMENT_AT(`x`, 1), TRY_ELEMENT_AT(`x`, `i`) FROM `t`"),
        ("SELECT arg_max(a, b) FROM t", "SELECT MAX_BY(`a`, `b`) FILTER(WHERE NOT `a` IS NULL) FROM `t`"),
        (
            "SELECT quantile_disc(a, 0.5) FROM t",
            "SELECT PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY `a` ASC NULLS LAST) FROM `t`",
        ),
        ("SELECT quantile_cont(a, 0.5) FROM t", "SELECT PERCENTILE(`a`, 0.5) FROM `t`"),
        (
            "SELECT quantile_disc(a, [0.5, 1.0]) FROM t",
            "SELECT FLATTEN(TRANSFORM(ARRAY(SORT_ARRAY(COLLECT_LIST(`a`))), `_sorted` -> TRANSFORM(ARRAY(0.5, 1.0), "
            "`_share` -> TRY_ELEMENT_AT(_sorted, CAST(GREATEST(1, CEIL(`_share` * SIZE(_sorted))) AS INT))))) FROM `t`",
        ),
        ("SELECT ('0.3' * 1e6)::BIGINT", "SELECT CAST(RINT(('0.3' * 1e6)) AS BIGINT)"),
        ("SELECT 'x'::e_phase", "SELECT CAST('x' AS STRING)"),
        (
            "SELECT a, unnest([b, c]) AS x, unnest([1, -1]) AS y FROM t",
            "SELECT `a`, `_unnested_0` AS `x`, `_unnested_1` AS `y` FROM `t` LATERAL VIEW "
            "INLINE(ARRAYS_ZIP(ARRAY(`b`, `c`), ARRAY(1, -1))) _unnest AS `_unnested_0`, `_unnested_1`",
        ),
        (
            "SELECT sum(a) OVER w - b FROM t WINDOW w AS (PARTITION BY k)",
            "SELECT SUM(`a`) OVER (PARTITION BY `k`) - `b` FROM `t`",
        ),
        ("SELECT a FROM t ORDER BY a", "SELECT `a` FROM `t` ORDER BY `a` NULLS LAST"),
        ("SELECT '\\' AS a, 'it''s' AS b", "SELECT '\\\\' AS `a`, 'it\\'s' AS `b`"),
    ],
)
def test_what_differs_is_translated(duckdb: str, spark: str) -> None:
    assert steps_to_spark(duckdb) == ([], spark)


def test_an_answer_is_sorted_in_the_order_of_its_enums() -> None:
    _, found = steps_to_spark("SELECT phase FROM t ORDER BY t.phase", {"phase": ("prefill", "decode")})
    assert found.endswith("ORDER BY ARRAY_POSITION(ARRAY('prefill', 'decode'), `t`.`phase`) NULLS LAST")


def test_every_query_and_view_has_a_translation() -> None:
    for view in VIEWS.values():
        steps_to_spark(view)
    for query in catalogue().values():
        steps_to_spark(query.sql({param.name: param.default for param in query.params}))
    assert tables_of("WITH a AS (FROM b) SELECT * FROM a, c WHERE EXISTS (FROM d)") >= {"b", "c", "d"}


def test_what_is_materialised_is_computed_first() -> None:
    first, last = steps_to_spark("WITH a AS MATERIALIZED (FROM t), b AS (FROM a) SELECT x FROM a, b")
    assert first == [("a", "SELECT * FROM `t`")]
    assert last == "WITH `b` AS (SELECT * FROM `a`) SELECT `x` FROM `a`, `b`"


def test_what_is_materialised_later_has_what_came_before() -> None:
    first, last = steps_to_spark(
        "WITH a AS (FROM t), b AS MATERIALIZED (WITH c AS (FROM a) FROM c), d AS (FROM b) SELECT x FROM a, b, d"
    )
    assert first == [("b", "WITH `a` AS (SELECT * FROM `t`), `c` AS (SELECT * FROM `a`) SELECT * FROM `c`")]
    assert last == "WITH `a` AS (SELECT * FROM `t`), `d` AS (SELECT * FROM `b`) SELECT `x` FROM `a`, `b`, `d`"


def test_what_has_no_translation_says_so() -> None:
    with pytest.raises(KvtraceError, match=r"no translation to Spark: .*ASOF"):
        steps_to_spark("SELECT l.t FROM l ASOF JOIN r USING (k)")
