"""The step columns of a page: one row a step, or one row for several steps when there are too many to draw."""

from __future__ import annotations

from typing import Any

from kvtrace.viewer.encode import delta, shift
from kvtrace.viewer.source import Columns, Source

_FREE_CACHED = """
    reset AS (
        SELECT rowid AS n, row_number() OVER (ORDER BY rowid) AS epoch
        FROM block_event WHERE engine_id = {engine} AND pool = 0 AND op = 'reset'
    ),
    event AS (
        SELECT b.rowid AS n, b.time_ns, b.block_id, b.ref_count, coalesce(r.epoch, 0) AS epoch,
            CASE b.op WHEN 'cache' THEN 1 WHEN 'evict' THEN 0 END AS turned
        FROM block_event b ASOF LEFT JOIN reset r ON b.rowid >= r.n
        WHERE b.engine_id = {engine} AND b.pool = 0
    ),
    state AS (
        SELECT n, time_ns, epoch, block_id, ref_count,
            coalesce(last_value(turned IGNORE NULLS) OVER block, 0) AS findable
        FROM event WINDOW block AS (PARTITION BY epoch, block_id ORDER BY n)
    ),
    change AS (
        SELECT time_ns, epoch,
            findable - lag(findable, 1, 0) OVER block AS findable,
            (findable = 1 AND ref_count = 0)::INT
                - lag((findable = 1 AND ref_count = 0)::INT, 1, 0) OVER block AS free_cached
        FROM state WINDOW block AS (PARTITION BY epoch, block_id ORDER BY n)
    ),
    total AS (
        SELECT epoch, time_ns, sum(findable) AS findable, sum(free_cached) AS free_cached
        FROM change GROUP BY epoch, time_ns
    ),
    balance AS (
        SELECT time_ns, epoch, sum(findable) OVER past AS findable, sum(free_cached) OVER past AS free_cached
        FROM total WINDOW past AS (PARTITION BY epoch ORDER BY time_ns)
    ),
    cache AS (
        SELECT time_ns, arg_max(findable, epoch) AS findable, arg_max(free_cached, epoch) AS free_cached
        FROM balance GROUP BY time_ns
    )
"""
"""Blocks that are free and findable after each change. A trace has cached blocks only as a total, in use or free, so
each block's state is followed through its events; a reset starts all of them afresh."""

_STEPS = """
    WITH {free_cached},
    eviction AS (
        SELECT step, count(*) AS evicted_blocks FROM block_event
        WHERE engine_id = {engine} AND pool = 0 AND op = 'evict' GROUP BY step
    ),
    one AS (
        SELECT s.*, coalesce(s.end_ns - s.interval_ns, s.start_ns) AS drawn_ns,
            c.findable, c.free_cached, coalesce(e.evicted_blocks, 0) AS evicted_blocks,
            (row_number() OVER (ORDER BY s.step) - 1) // {per_row} AS bucket
        FROM step s
        ASOF LEFT JOIN cache c ON s.scheduled_ns >= c.time_ns
        LEFT JOIN eviction e ON e.step = s.step
        WHERE s.engine_id = {engine}
    )
    SELECT
        min(step) AS step,
        count(*) AS steps,
        min(drawn_ns) AS start_ns,
        max(end_ns) AS end_ns,
        max(duration_ns) AS duration_ns,
        max(scheduled_ns - start_ns) AS schedule_ns,
        max(update_ns - scheduled_ns) AS model_ns,
        max(end_ns - update_ns) AS update_ns,
        {phases},
        max(scheduled_requests) AS scheduled_requests,
        min(budget_left_tokens) AS budget_left_tokens,
        sum(output_tokens)::BIGINT AS output_tokens,
        sum(finished_requests)::BIGINT AS finished_requests,
        max(running) AS running,
        max(waiting) AS waiting,
        arg_max(used_blocks, used_blocks) AS used_blocks,
        arg_max(free_blocks, used_blocks) AS free_blocks,
        arg_max(cached_blocks, used_blocks) AS cached_blocks,
        arg_max(free_cached, used_blocks)::BIGINT AS free_cached_blocks,
        min(used_blocks) AS least_used_blocks,
        sum(evicted_blocks)::BIGINT AS evicted_blocks,
        sum(preempted_requests)::BIGINT AS preempted_requests,
        coalesce(
            mode(admission_limit::VARCHAR) FILTER (admission_limit <> 'none'), any_value(admission_limit::VARCHAR)
        ) AS admission_limit,
        count(*) FILTER (admission_limit <> 'none') AS limited_steps,
        arg_max(limit_request, step) FILTER (admission_limit <> 'none') AS limit_request,
        arg_max(limit_need_blocks, step) FILTER (limit_need_blocks IS NOT NULL) AS limit_need_blocks,
        arg_max(limit_free_blocks, step) FILTER (limit_need_blocks IS NOT NULL) AS limit_free_blocks,
        count(*) FILTER (findable <> cached_blocks) AS cache_mismatches
    FROM one GROUP BY bucket ORDER BY bucket
"""

_PHASES = ("prefill", "chunked_prefill", "decode", "resumed")


def export_steps(source: Source, engine: int, origin_ns: int, max_rows: int) -> dict[str, Any]:
    """An engine's steps, in at most `max_rows` rows; times in ns after `origin_ns`."""
    total = source.row(f"SELECT count(*) AS steps FROM step_schedule WHERE engine_id = {engine}")["steps"]
    per_row = max(1, -(-total // max_rows))
    columns = source.columns(_query(engine, per_row))
    mismatches = sum(columns.pop("cache_mismatches"))
    return {
        "total": total,
        "per_row": per_row,
        "cache_mismatches": mismatches,
        "columns": _relative(columns, origin_ns),
    }


def _query(engine: int, per_row: int) -> str:
    phases = ", ".join(f"arg_max({phase}_tokens, scheduled_tokens) AS {phase}_tokens" for phase in _PHASES)
    free_cached = _FREE_CACHED.format(engine=engine)
    return _STEPS.format(engine=engine, per_row=per_row, phases=phases, free_cached=free_cached)


def _relative(columns: Columns, origin_ns: int) -> dict[str, Any]:
    return {
        **columns,
        "step": delta(columns["step"]),
        "start_ns": delta([start - origin_ns for start in columns["start_ns"]]),
        "end_ns": shift(columns["end_ns"], origin_ns),
    }
