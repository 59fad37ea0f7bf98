"""Groups of one run's requests against each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.queries.statistics import statistic, unpaired_interval
from kvtrace.reports.groups import GroupRow, compare_groups

from .conftest import HOSTILE, MakeTrace, run_sql

PHASES = """
    UPDATE request SET local_cached_tokens = request - 1,
        session = CASE WHEN request <= 20 THEN 'one-' ELSE '{name}-' END || request;
"""


@pytest.fixture(scope="module")
def phases(make_trace: MakeTrace) -> Path:
    """Two phases of 20 requests. Request k (from 0) has 100 + k tokens, k of them found, and a TTFT of 10 + k ms."""
    return make_trace(run_sql() + PHASES.format(name="two"))


def by_metric(rows: list[GroupRow]) -> dict[str, GroupRow]:
    return {row.metric: row for row in rows}


def test_the_numbers_of_two_phases(phases: Path) -> None:
    rows = by_metric(compare_groups(phases, "phase"))
    assert {(row.base_group, row.group, row.base_requests, row.requests) for row in rows.values()} == {
        ("one", "two", 20, 20)
    }
    assert rows["prefix hit rate"].base == pytest.approx(190 / 2190)
    assert rows["prefix hit rate"].value == pytest.approx(590 / 2590)
    assert (rows["TTFT, mean"].base, rows["TTFT, mean"].value, rows["TTFT, mean"].difference) == (19.5, 39.5, 20)
    assert (rows["TTFT, p50"].base, rows["TTFT, p95"].value) == (19, 48)
    found = rows["TTFT, mean"].interval
    assert found
    # Each mean's standard error is sqrt(33.25 / 20) = 1.29 ms, the difference's 1.82 ms; t of 19 degrees is 2.09.
    assert 20 - found.low == pytest.approx(2.09 * 1.82, rel=0.12)
    assert found.high - 20 == pytest.approx(2.09 * 1.82, rel=0.12)
    assert rows["TTFT, p95"].interval
    assert by_metric(compare_groups(phases, "phase", skip_requests=1))["TTFT, p95"].interval is None


def test_the_warm_up_is_left_out(phases: Path) -> None:
    rows = by_metric(compare_groups(phases, "phase", skip_requests=10))
    assert (rows["TTFT, mean"].base_requests, rows["TTFT, mean"].base) == (10, 24.5)


def test_one_group_is_nothing_to_compare(make_trace: MakeTrace) -> None:
    with pytest.raises(KvtraceError, match="of the requests, all are s"):
        compare_groups(make_trace(run_sql()), "phase")
    with pytest.raises(KvtraceError, match="there are none"):
        compare_groups(make_trace(), "warmth")


def test_intervals_of_groups_hold_the_truth_as_often_as_they_say() -> None:
    """Two exponential groups of different sizes, the second 1 slower in the mean: 95% of intervals hold that."""
    random = np.random.default_rng(5)
    held = 0
    for _ in range(120):
        base, other = random.exponential(2, (60, 1)), random.exponential(3, (45, 1))
        found = unpaired_interval("mean", base, other)
        assert found
        held += found.low <= 1 <= found.high
    assert 0.88 <= held / 120 <= 1


def test_an_interval_lies_around_the_difference_and_few_have_none() -> None:
    base, other = np.arange(30.0)[:, None], np.arange(30.0)[:, None] + 100
    found = unpaired_interval("p50", base, other)
    ones = np.ones((1, 30))
    assert found
    assert found.low < float((statistic("p50", other, ones) - statistic("p50", base, ones))[0]) < found.high
    assert unpaired_interval("mean", base[:7], other) is None
    assert unpaired_interval("p95", base[:19], other) is None


def test_on_the_terminal_names_are_inert(make_trace: MakeTrace) -> None:
    text = HOSTILE.replace("'", "''")
    trace = make_trace(run_sql() + PHASES.format(name=text))
    done = CliRunner().invoke(app, ["compare", str(trace), "--by", "phase"])
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    assert "TTFT, p95" in done.stdout


@pytest.mark.parametrize("more", [["B.duckdb"], ["-o", "x"], ["--pair", "order"]])
def test_groups_are_of_one_trace_and_on_the_terminal(phases: Path, more: list[str]) -> None:
    done = CliRunner().invoke(app, ["compare", str(phases), "--by", "phase", *more])
    assert isinstance(done.exception, KvtraceError)
    assert "--by compares the requests of one trace" in str(done.exception)
