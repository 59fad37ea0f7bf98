"""Exported data are as viewer/contract.py declares them, and the page's TypeScript is generated from it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import kvtrace.viewer
from kvtrace.viewer import contract, tables
from kvtrace.viewer.columns import unpack
from kvtrace.viewer.contract import DATA_SETS
from kvtrace.viewer.data_set import DataSet
from kvtrace.viewer.tables import pins

from .chromium import Chromium
from .exported import Exported
from .pages import insert_moves, make_page, text
from .simulate import create_trace

GENERATED = Path(kvtrace.viewer.__file__).resolve().parent / "web" / "src" / "data" / "contract.ts"
DAMAGES = (
    "",
    "DELETE FROM step_update",
    "DELETE FROM step_request; DELETE FROM engine; DELETE FROM prefix_lookup",
    "UPDATE request SET queued_ns = NULL, finished_ns = NULL",
)


def test_the_generated_typescript_is_of_these_declarations() -> None:
    assert GENERATED.read_text() == contract.typescript(), "viewer/contract.py changed: make page"


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_chunk_is_as_declared(tmp_path: Path, damage: str) -> None:
    path = create_trace(tmp_path / "trace.duckdb")
    insert_moves(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute(damage or "SELECT 1")
    declared = {data.name: data for data in DATA_SETS}
    seen = set()
    for name, chunk in Exported(path).chunks.items():
        table = unpack(chunk)
        data = declared[(table.schema.metadata or {})[b"kvtrace"].decode()]
        data.check(table)
        for column in data.columns:
            if not column.null and not column.optional:
                assert table[column.name].null_count == 0, (name, column.name)
        seen.add(data.name)
    if not damage:
        # Of an access too many for one view there are bins: tests/viewer/test_closeups.py.
        assert seen == set(declared) - {"access_bins"}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"pin": [1]}, r"pins\.block: declared, but not exported"),
        ({"colour": [1]}, r"pins\.colour: exported, but not declared"),
        ({"cause": [1]}, r"pins\.cause: exported as number, declared as text"),
    ],
)
def test_a_table_that_is_not_as_declared_is_refused(columns: dict[str, list[int]], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        pins.TABLE.data.check(pa.table(columns))


def test_a_lane_that_reads_a_column_the_data_lacks_says_which(
    chromium: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a page whose chunks of pins have no causes
    path = create_trace(tmp_path / "trace.duckdb")
    insert_moves(path)
    without = pins.TABLE._replace(query=pins.TABLE.query.replace("cause::VARCHAR AS cause, ", ""))
    declared = tuple(without if table is pins.TABLE else table for table in tables.declared())
    monkeypatch.setattr(tables, "declared", lambda: declared)
    monkeypatch.setattr(DataSet, "check", lambda *_: None)
    # WHEN a lane draws them, THEN the page says what is wrong
    chromium.open(make_page(path), "from=4.0&to=4.1")
    assert text(chromium, "#failure").startswith("lane map: no column cause in pins (chunk r0e0-pins-0)")
