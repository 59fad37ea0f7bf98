"""The page, the report and the queries give the same request states, free cached blocks and tier occupancy."""

from __future__ import annotations

import tarfile
from pathlib import Path

import duckdb
import pytest

from kvtrace.ingest.run import ingest
from tests.agreement import compare
from tests.viewer.simulate import create_trace

from .conftest import MakeTrace

QUERIES = Path(__file__).parent
RECORDINGS = QUERIES.parents[1] / "examples" / "recordings"
ENGINE = "INSERT INTO engine BY NAME SELECT {} AS engine_id, 'm' AS model, 16 AS block_size_tokens, 8 AS blocks;"
STEP = "INSERT INTO step_schedule BY NAME SELECT 1 AS engine_id, 1 AS step, 1005000000 AS start_ns, {} AS scheduled_ns,"


# Those of engines with offload tiers are compared in tests/vllm/offload/test_page.py.
@pytest.mark.parametrize("name", ["agents-1", "agents-clock", "agents-small", "agents-h100", "tiles-h100"])
def test_of_real_recordings(tmp_path: Path, name: str) -> None:
    with tarfile.open(RECORDINGS / f"{name}.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    compared = compare(ingest(tmp_path / name).target)
    assert compared["request-states"] > 10 < compared["kv-utilisation"]


def test_of_three_engines_and_a_reset_of_the_prefix_cache(tmp_path: Path) -> None:
    path = create_trace(tmp_path / "trace.duckdb", engines=3, blocks=60)
    with duckdb.connect(str(path)) as connection:
        connection.execute("""
            INSERT INTO block_event BY NAME SELECT 2 AS engine_id, max(end_ns) + 10 AS time_ns, 0 AS pool, 'reset' AS op
            FROM step_update WHERE engine_id = 2;
            INSERT INTO step_schedule BY NAME SELECT * REPLACE (9999 AS step, start_ns + 10_000_000_000 AS start_ns,
                scheduled_ns + 10_000_000_000 AS scheduled_ns, 0 AS cached_blocks, 0 AS used_blocks, 60 AS free_blocks)
            FROM step_schedule WHERE engine_id = 2 ORDER BY step DESC LIMIT 1
        """)
    assert compare(path)["request-states"] > 100


def test_of_late_first_tokens_and_requests_that_have_not_ended(make_trace: MakeTrace) -> None:
    compared = compare(make_trace(ENGINE.format(7) + (QUERIES / "request-states" / "trace.sql").read_text()))
    assert compared["request-states"] > 10


def test_of_an_offload_tier(make_trace: MakeTrace) -> None:
    path = make_trace(
        ENGINE.format(1)
        + (QUERIES / "tier-hits" / "trace.sql").read_text()
        + STEP.format(1006000000)
        + "2 AS used_blocks, 6 AS free_blocks, 0 AS preempted_requests, 'none' AS admission_limit;"
        + "INSERT INTO step_update (engine_id, step, update_ns, end_ns) VALUES (1, 1, 1007000000, 1020000000);"
    )
    assert compare(path)["tier-hits"] == 1
