"""Answers of the page, the report and the queries on one trace, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace.queries import Trace, catalogue
from kvtrace.reports.answers import Answer, answers
from tests.viewer.exported import Exported

Rows = list[dict[str, Any]]

SHARED = ("request-states", "kv-utilisation", "tier-hits")


def compare(path: Path) -> dict[str, int]:
    """Compare request states, free cached blocks and tier occupancy; how many rows of each there were."""
    with Trace(path) as trace:
        engines = trace.sql("SELECT engine_id FROM engine ORDER BY engine_id", "arrow")["engine_id"].to_pylist()
        asked: dict[str, Rows] = {name: trace.query(name, "arrow").to_pylist() for name in SHARED}
        reported = {
            answer.query.name: [
                dict(zip((column.name for column in answer.query.columns), row, strict=True)) for row in answer.rows
            ]
            for answer in answers(trace, sum(map(len, asked.values())), [catalogue()[name] for name in SHARED])
            if isinstance(answer, Answer)
        }
        usage = trace.sql("SELECT * FROM kv_usage ORDER BY engine_id, end_ns", "arrow").to_pylist()
    for name in SHARED:
        assert reported.get(name, []) == asked[name]
    for number, engine in enumerate(engines):
        page = Exported(path, number)
        states, pool, tiers = ([row for row in asked[name] if row["engine_id"] == engine] for name in SHARED)
        assert _states_of(page) == sorted(stretch for row in states if (stretch := _stretch(page, row))[2] < stretch[3])
        free = dict(zip(page.steps["step"], page.steps["free_cached_blocks"], strict=True)) if pool else {}
        assert {row["step"]: row["cached_free_blocks"] for row in pool} == free
        assert page.engine["steps"]["cache_mismatches"] == 0
        _check_tiers(page, tiers, [row for row in usage if row["engine_id"] == engine])
    return {name: len(rows) for name, rows in asked.items()}


def _stretch(page: Exported, row: dict[str, Any]) -> tuple[int, str, int, int]:
    """A stretch as the page shows it: what had not ended goes on to the end of the recording."""
    end_ns = page.origin + page.run["last_ns"] if row["end_ns"] is None else row["end_ns"]
    return row["request"], row["state"], row["start_ns"], end_ns


def _states_of(page: Exported) -> list[tuple[int, str, int, int]]:
    if not page.engine["requests"]["levels"][-1]:
        return []
    requests, segments = page.requests["request"], page.segments
    columns = (segments[name] for name in ("row", "state", "start_ns", "duration_ns"))
    return sorted(
        (requests[row], page.run["states"][state], page.origin + start, page.origin + start + duration)
        for row, state, start, duration in zip(*columns, strict=True)
    )


def _check_tiers(page: Exported, tiers: Rows, usage: Rows) -> None:
    columns = page.read(page.engine["tiers"]) if page.engine["tiers"] else {}
    last: dict[str, int] = {}
    most: dict[str, int] = {}
    for tier, blocks, at_most in zip(
        *(columns.get(name, []) for name in ("tier", "occupied_blocks", "most_blocks")), strict=True
    ):
        last[tier], most[tier] = blocks, max(at_most, most.get(tier, 0))
    assert last == {row["tier"]: row["end_occupied_blocks"] for row in tiers}
    assert most == {row["tier"]: row["max_occupied_blocks"] for row in tiers}
    for row in tiers:
        if row["tier"] == "cpu" and row["capacity_blocks"] and usage and usage[-1]["host_usage"] is not None:
            assert usage[-1]["host_usage"] == last["cpu"] / row["capacity_blocks"]
