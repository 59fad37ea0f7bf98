"""The rules every query file keeps, and the reading of its header."""

from __future__ import annotations

import inspect
import re

import pytest

from kvtrace import queries
from kvtrace.errors import KvtraceError
from kvtrace.events import EVENTS
from kvtrace.ingest.schema import trace
from kvtrace.queries import Trace, catalogue, find, grouped
from kvtrace.queries.catalogue import parse
from kvtrace.queries.views import views

TABLES = {*EVENTS, *(table.name for table in trace.TABLES), *(view.name for view in views())}
UNIT_SUFFIXES = {"ns", "us", "ms", "s", "tokens", "blocks", "requests"}

GOOD = """\
-- How many?
--
-- A description
-- of two lines.
--
-- A second paragraph.
--
-- group: Scheduling
-- needs: step_schedule, request
-- worst: n
-- param: engine INTEGER = NULL | Only this one.
-- param: name VARCHAR = 'x' | A name.
-- param: width_ms DOUBLE | How wide,
--     in all.
-- column: n [requests] derived | Number,
--     counted.

SELECT count(*) AS n FROM request WHERE $engine IS NULL OR engine_id = $engine AND $width_ms > 0
"""


def test_header_is_read_as_written() -> None:
    query = parse("how-many", GOOD)

    assert query.title == "How many?"
    assert query.description == "A description of two lines.\n\nA second paragraph."
    assert query.group == "Scheduling"
    assert query.needs == ("step_schedule", "request")
    assert query.worst == "n"
    assert [(p.name, p.type, p.default, p.required) for p in query.params] == [
        ("engine", "INTEGER", None, False),
        ("name", "VARCHAR", "x", False),
        ("width_ms", "DOUBLE", None, True),
    ]
    assert query.params[2].meaning == "How wide, in all."
    assert (query.columns[0].unit, query.columns[0].source) == ("requests", "derived")
    assert query.columns[0].meaning == "Number, counted."


def test_the_worst_rows_are_chosen_by_a_column() -> None:
    for query in catalogue().values():
        assert not query.worst or query.worst in {column.name for column in query.columns}, query.name


def test_queries_are_listed_by_group_in_a_fixed_order() -> None:
    texts = (GOOD, GOOD.replace("-- group: Scheduling\n", ""), GOOD.replace("Scheduling", "Run"))
    found = grouped(parse(name, text) for name, text in zip("abc", texts, strict=True))
    assert {group: [query.name for query in members] for group, members in found.items()} == {
        "Run": ["c"], "Scheduling": ["a"], "Other": ["b"],
    }  # fmt: skip
    assert list(found) == ["Run", "Scheduling", "Other"]


def test_parameters_become_values_of_their_declared_type() -> None:
    sql = parse("how-many", GOOD).sql({"engine": None, "name": "x", "width_ms": "1' OR '2"})

    assert "CAST(NULL AS INTEGER) IS NULL" in sql
    assert "CAST('1'' OR ''2' AS DOUBLE) > 0" in sql


@pytest.mark.parametrize(
    ("line", "replacement", "complaint"),
    [
        ("[requests] derived", "[furlongs] derived", "unit"),
        ("[requests] derived", "[requests]", "SOURCE"),
        ("group: Scheduling", "group: Schedules", "is not one of Run, Scheduling, "),
        ("engine INTEGER", "engine INT4", "INTEGER"),
        ("--     counted.", "-- counted.", "indented"),
        ("-- How many?\n", "", "name"),
    ],
)
def test_header_that_breaks_the_format_is_refused_with_the_file(line: str, replacement: str, complaint: str) -> None:
    text = GOOD.replace(line, replacement) if complaint != "name" else "SELECT 1"
    with pytest.raises(KvtraceError, match=rf"(?s)how-many\.sql.*{'header' if complaint == 'name' else complaint}"):
        parse("how-many", text)


@pytest.mark.parametrize("query", catalogue().values(), ids=lambda query: query.name)
class TestEveryQuery:
    def test_asks_a_question_and_explains_itself(self, query: queries.Query) -> None:
        assert query.title.endswith("?")
        assert query.description.endswith(".")
        assert query.columns

    def test_needs_tables_that_exist(self, query: queries.Query) -> None:
        assert query.needs
        assert set(query.needs) <= TABLES

    def test_describes_columns_and_parameters_in_sentences(self, query: queries.Query) -> None:
        for documented in (*query.columns, *query.params):
            assert documented.meaning.endswith("."), documented.name

    def test_names_units_as_the_columns_do(self, query: queries.Query) -> None:
        for column in query.columns:
            suffix = column.name.rsplit("_", 1)[-1]
            if "_per_" not in column.name and suffix in UNIT_SUFFIXES and column.name != suffix and column.unit:
                assert column.unit.split("/")[0] == suffix, column.name
            if "_per_" not in column.name and suffix in {"ns", "us", "ms", "tokens", "blocks"}:
                assert column.unit, f"{column.name} has a unit in its name but none in its documentation"

    def test_uses_the_parameters_it_declares_and_no_others(self, query: queries.Query) -> None:
        reserved = set(inspect.signature(Trace.query).parameters)
        assert set(re.findall(r"\$(\w+)", query.body)) == {param.name for param in query.params}
        assert not {param.name for param in query.params} & reserved

    def test_orders_its_rows(self, query: queries.Query) -> None:
        assert re.search(r"\nORDER BY [^\n]+\n$", query.body)


def test_unknown_name_offers_near_ones() -> None:
    with pytest.raises(KvtraceError, match=r"'step_timelin'.*step-timeline"):
        find("step_timelin")


def test_trace_version_is_the_one_ingest_writes() -> None:
    assert queries.TRACE_VERSION == trace.TRACE_VERSION
