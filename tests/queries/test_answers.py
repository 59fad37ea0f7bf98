"""Each canned query on a tiny trace written by hand.

NAME/trace.sql fills the trace, NAME/expected.csv is the answer, NAME/expected@PARAM=VALUE.csv the one with parameters.
"""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import pyarrow as pa
import pytest

from kvtrace.queries import Trace, catalogue
from kvtrace.queries.writers import Limited, write_csv

from .conftest import MakeTrace

HERE = Path(__file__).parent
MOMENT = re.compile(r"(?:^|_)(?:time|start|end|arrival|send|finished|first|last|from|offset)_ns$")
CASES = sorted(HERE.glob("*/expected*.csv"))


def params_of(expected: Path) -> dict[str, str]:
    _, _, given = expected.name.removesuffix(".csv").partition("@")
    return dict(pair.split("=") for pair in given.split(",")) if given else {}


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def same(found: str, expected: str) -> bool:
    """Equal as text, or as numbers to nine digits: the last digit of a fit is nobody's."""
    try:
        return found == expected or math.isclose(float(found), float(expected), rel_tol=1e-9)
    except ValueError:
        return False


@pytest.mark.parametrize("expected", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_answer_is_the_expected_one(expected: Path, make_trace: MakeTrace) -> None:
    path = make_trace((expected.parent / "trace.sql").read_text())
    with Trace(path) as trace:
        out = io.BytesIO()
        write_csv(Limited(trace.query(expected.parent.name, format="batches", **params_of(expected))), out)

    found, wanted = rows_of(out.getvalue().decode()), rows_of(expected.read_text())

    assert found[0] == wanted[0]
    assert len(found) == len(wanted), out.getvalue().decode()
    differing = [
        (f"row {number}", name, f"found {a!r}", f"expected {b!r}")
        for number, (row, other) in enumerate(zip(found[1:], wanted[1:], strict=True), 1)
        for name, a, b in zip(found[0], row, other, strict=True)
        if not same(a, b)
    ]
    assert not differing


def test_every_query_has_an_answer_written_by_hand() -> None:
    assert {case.parent.name for case in CASES} == set(catalogue())


@pytest.mark.parametrize("name", catalogue())
def test_documented_columns_are_the_returned_ones(name: str, make_trace: MakeTrace) -> None:
    with Trace(make_trace()) as trace:
        table = trace.query(name, format="arrow")

    columns = catalogue()[name].columns
    assert table.schema.names == [column.name for column in columns]
    whole = [
        each.name for each in columns if each.unit == "ns" and pa.types.is_integer(table.schema.field(each.name).type)
    ]
    assert [each for each in whole if not MOMENT.search(each)] == [], "a terminal shows whole ns as points in time"


@pytest.mark.parametrize("name", catalogue())
def test_empty_trace_gives_no_rows_and_says_what_is_missing(name: str, make_trace: MakeTrace) -> None:
    with Trace(make_trace()) as trace:
        assert trace.query(name, format="arrow").num_rows == 0
        assert trace.missing(name) == catalogue()[name].needs


@pytest.mark.parametrize("name", catalogue())
def test_whole_numbers_stay_whole_in_every_reader(name: str, make_trace: MakeTrace) -> None:
    """DuckDB sums integers to HUGEINT, which Arrow turns into decimals and pandas into objects: cast it."""
    with Trace(make_trace()) as trace:
        types = {field.name: field.type for field in trace.query(name, format="arrow").schema}

    assert not {column for column, type_ in types.items() if pa.types.is_decimal(type_)}


BOUNDS_OF_SEVERAL_UNITS = {("recompute-vs-swap", "at_least"), ("recompute-vs-swap", "below")}


@pytest.mark.parametrize("name", catalogue())
def test_every_fraction_has_a_unit(name: str, make_trace: MakeTrace) -> None:
    with Trace(make_trace()) as trace:
        fractions = [
            field.name for field in trace.query(name, format="arrow").schema if pa.types.is_floating(field.type)
        ]

    bare = {(name, column.name) for column in catalogue()[name].columns if column.name in fractions and not column.unit}
    assert not bare - BOUNDS_OF_SEVERAL_UNITS


@pytest.mark.parametrize("name", ["block-reuse", "block-residency"])
def test_several_engines_answer_as_each_would_alone(name: str, make_trace: MakeTrace, tmp_path: Path) -> None:
    """GIVEN two engines' events in one table WHEN counting allocations THEN neither sees the other's."""
    events = (HERE / name / "trace.sql").read_text()
    with Trace(make_trace(events)) as trace:
        alone = [row for row in trace.query(name, format="arrow").to_pylist() if row["engine_id"] == 1]
    (tmp_path / "trace.duckdb").unlink()
    other = "INSERT INTO block_event SELECT * REPLACE (7 AS engine_id) FROM block_event WHERE engine_id = 1;"
    mixed = "CREATE TEMP TABLE t AS FROM block_event ORDER BY time_ns, rowid; DELETE FROM block_event;"
    with Trace(make_trace(events + other + mixed + "INSERT INTO block_event FROM t;")) as trace:
        together = trace.query(name, format="arrow").to_pylist()

    assert [row for row in together if row["engine_id"] == 1] == alone
    assert [row | {"engine_id": 1} for row in together if row["engine_id"] == 7] == alone
