"""The generated recordings that benchmarks rest on are consistent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtrace.ingest.run import Summary, ingest

GENERATE = Path(__file__).parents[2] / "bench" / "generate.py"


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    run = tmp_path_factory.mktemp("generated") / "run"
    subprocess.run([sys.executable, str(GENERATE), str(run), "--records", "1500000"], check=True)
    return ingest(run)


def test_it_has_as_many_records_as_asked_for(summary: Summary) -> None:
    assert summary.records == 1_500_000
    assert summary.warnings == []
    assert sum(join.unmatched for join in summary.joins) < 100  # of the step that was cut off


def test_reference_counts_follow_from_the_operations(summary: Summary, query: Callable) -> None:
    wrong = query(summary.target)("""
        WITH block AS (
            SELECT op, ref_count, lag(ref_count, 1, 0) OVER (PARTITION BY engine_id, block_id ORDER BY rowid) AS before
            FROM block_event
        )
        SELECT count(*) FROM block WHERE ref_count <> CASE op
            WHEN 'allocate' THEN 1 WHEN 'hit' THEN before + 1 WHEN 'free' THEN before - 1 ELSE before END
    """)
    assert wrong == [(0,)]


def test_the_pool_is_as_full_as_the_steps_say(summary: Summary, query: Callable) -> None:
    # A step's allocations come before its record, and what its results release comes after.
    different = query(summary.target)("""
        WITH change AS (
            SELECT engine_id, time_ns, CASE WHEN op = 'free' AND ref_count = 0 THEN 1
                WHEN op = 'allocate' OR op = 'hit' AND ref_count = 1 THEN -1 ELSE 0 END AS freed
            FROM block_event
        ), total AS (
            SELECT engine_id, time_ns, sum(sum(freed)) OVER (PARTITION BY engine_id ORDER BY time_ns) AS freed
            FROM change GROUP BY engine_id, time_ns
        )
        SELECT DISTINCT s.free_blocks - t.freed AS blocks, s.free_blocks + s.used_blocks AS total
        FROM step_schedule s ASOF JOIN total t ON s.engine_id = t.engine_id AND s.scheduled_ns > t.time_ns
    """)
    ((blocks, total),) = different
    assert blocks == total


def test_a_block_is_evicted_with_the_hash_it_was_cached_with(summary: Summary, query: Callable) -> None:
    rows = query(summary.target)("""
        WITH life AS (
            SELECT op, block_hash, lag(op) OVER block AS before, lag(block_hash) OVER block AS hash_before
            FROM block_event WHERE op IN ('cache', 'evict')
            WINDOW block AS (PARTITION BY engine_id, block_id ORDER BY rowid)
        )
        SELECT DISTINCT op, before, hash_before = block_hash FROM life WHERE before IS NOT NULL ORDER BY ALL
    """)
    assert rows == [("cache", "evict", False), ("evict", "cache", True)]


def test_there_is_something_to_see(summary: Summary, query: Callable) -> None:
    select = query(summary.target)
    assert select("SELECT count(*) > 0 FROM request_event WHERE op = 'preempt'") == [(True,)]
    assert select("SELECT count(DISTINCT admission_limit) >= 4 FROM step_schedule") == [(True,)]
    assert select("SELECT avg(local_cached_tokens) > 0 FROM request WHERE turn > 1") == [(True,)]
