"""Engines beside each other: the same events again, as of other engines, processes and files, change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvtrace.queries import Trace

from .conftest import MakeTrace

HERE = Path(__file__).parent
SHIFT = 1000
KEYS = {"process_id", "engine_id", "request", "limit_request", "source_id", "activity_id", "call_id", "pid", "ppid",
        "kernel_name_id"}  # fmt: skip
NAMES = {"external_id", "internal_id", "session", "request_id", "remote_request", "transfer_id"}
IDENTITY = ("engine_id", "process_id", "request", "source_id", "decode_request", "session")
WHOLE_RUN = {
    "job-completion": {"jobs_per_s", "blocks"},
    "recomputed-tokens": {"blocks"},
}
"""Columns that are of all engines together, and say so."""

OF_ALL_ENGINES = {"cache-pressure", "cold-warm", "gpu-copies", "nsight-alignment", "prefix-phases", "request-count",
                  "run-setting", "run-summary", "shared-unique", "steps-per-turn", "tool-mix", "top-kernels",
                  "turn-duration", "turn-growth", "turn-hit-rate", "turn-latency"}  # fmt: skip
"""Queries whose rows are of the whole run, of jobs or of files, not of an engine."""

CASES = sorted(path.parent.name for path in HERE.glob("*/trace.sql"))


def add_others(connection: duckdb.DuckDBPyConnection) -> None:
    """Every row again with other keys; block, step, transfer and pin numbers are each engine's own and stay."""
    columns = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() SEMI JOIN duckdb_tables() USING (table_name)"
    ).fetchall()
    changes: dict[str, list[str]] = {}
    for table, name, kind in columns:
        if name in KEYS and kind in ("INTEGER", "BIGINT"):
            changes.setdefault(table, []).append(f'"{name}" + {SHIFT} AS "{name}"')
        elif name in NAMES and kind == "VARCHAR":
            changes.setdefault(table, []).append(f'"{name}" || \'~\' AS "{name}"')
    for table, changed in changes.items():
        connection.execute(f"INSERT INTO {table} SELECT * REPLACE ({', '.join(changed)}) FROM {table}")
    connection.execute("CREATE TEMP TABLE mixed AS FROM block_event ORDER BY time_ns, rowid; DELETE FROM block_event")
    connection.execute("INSERT INTO block_event FROM mixed; DROP TABLE mixed")


def of_the_first(row: dict[str, Any]) -> bool | None:
    """Return whether a row is of the first set of engines; None if it does not tell."""
    for name in IDENTITY:
        value = row.get(name)
        if isinstance(value, str):
            return not value.endswith("~")
        if value is not None:
            return bool(value < SHIFT)
    return None


def answer(path: Path, name: str) -> list[dict[str, Any]]:
    own = WHOLE_RUN.get(name, set())
    with Trace(path) as trace:
        rows = trace.query(name, format="arrow").to_pylist()
    return [{key: value for key, value in row.items() if key not in own} for row in rows]


@pytest.mark.parametrize("name", [name for name in CASES if name not in OF_ALL_ENGINES])
def test_other_engines_leave_an_engines_rows_as_they_are(name: str, make_trace: MakeTrace) -> None:
    path = make_trace((HERE / name / "trace.sql").read_text())
    alone = answer(path, name)
    with duckdb.connect(str(path)) as connection:
        add_others(connection)
    together = answer(path, name)

    def telling(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(str(row) for row in rows if of_the_first(row))

    assert telling(together) == telling(alone) != []


def test_queries_that_ask_all_engines_are_known() -> None:
    assert set(CASES) >= OF_ALL_ENGINES
