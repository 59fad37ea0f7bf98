"""The block queries against pools that lived at random and counted for themselves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest

from kvtrace.queries import Trace

from .conftest import MakeTrace
from .pool import Pool

STEPS = 400


def lived(engine: int, seed: int) -> Pool:
    pool = Pool(engine, seed)
    pool.run(STEPS)
    return pool


def values(rows: Sequence[tuple[object, ...]]) -> str:
    """Rows of numbers, plain words and None as SQL: one INSERT of thousands takes a tenth of as many of one."""
    return ", ".join(str(tuple(row)).replace("None", "NULL") for row in rows)


@pytest.fixture(params=range(4))
def pools(request: pytest.FixtureRequest) -> list[Pool]:
    """One, two or three engines."""
    return [lived(engine, 10 * request.param + engine) for engine in range(1, 2 + request.param % 3)]


@pytest.fixture(params=["engine by engine", "mixed by time"])
def trace(request: pytest.FixtureRequest, pools: list[Pool], make_trace: MakeTrace) -> Trace:
    """Their events in one table."""
    events = [row for pool in reversed(pools) for row in pool.events]
    if request.param == "mixed by time":
        events.sort(key=lambda row: row[1])
    steps = [step for pool in pools for step in pool.steps]
    path = make_trace(
        "INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, pool)"
        f" VALUES {values(events)};"
        "INSERT INTO step_schedule"
        " (engine_id, start_ns, scheduled_ns, step, used_blocks, free_blocks, cached_blocks)"
        f" VALUES {values(steps)}"
    )
    return Trace(path)


def test_cached_free_blocks_are_those_of_the_pool(trace: Trace, pools: list[Pool]) -> None:
    with trace:
        rows = trace.query("kv-utilisation", format="arrow").to_pylist()

    assert [row["cached_free_blocks"] for row in rows] == [count for pool in pools for count in pool.cached_free]
    assert any(pool.cached_free for pool in pools)


@pytest.mark.parametrize(("query", "counted"), [("block-reuse", "reuse"), ("block-residency", "stays")])
def test_distributions_are_those_of_the_pool(trace: Trace, pools: list[Pool], query: str, counted: str) -> None:
    with trace:
        rows = trace.query(query, format="arrow").to_pylist()

    expected = {(pool.engine, kind): values for pool in pools for kind, values in getattr(pool, counted).items()}
    assert {(row["engine_id"], row["kind"]) for row in rows} == set(expected)
    for row in rows:
        times, blocks = zip(*expected[row["engine_id"], row["kind"]], strict=True)
        assert row["hits" if counted == "reuse" else "stays"] == len(times)
        assert row["mean_ms"] == pytest.approx(statistics.mean(times) / 1e6)
        assert row["max_ms"] == max(times) / 1e6
        assert row["p50_ms"] == statistics.median_low(times) / 1e6
        assert row["mean_allocated_blocks"] == pytest.approx(statistics.mean(blocks))
        assert row["p50_allocated_blocks"] == statistics.median_low(blocks)
        assert row["max_allocated_blocks"] == max(blocks)
