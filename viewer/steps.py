"""The steps of a page: a row a step in chunks, an overview in which several steps share a bar, and requests' shares."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.viewer.chunks import Writer
from kvtrace.viewer.contract import SHARES, STEPS
from kvtrace.viewer.source import Source, summarise

CHUNK_STEPS = 4096
OVERVIEW_BARS = 4096
OVERVIEW_FROM = 16_384
"""Steps from which on there is an overview."""

PHASES = ("prefill", "chunked_prefill", "decode", "resumed")

_STEPS = """
    WITH cached AS (
        SELECT time_ns, sum(sum(change)) OVER (ORDER BY time_ns) AS blocks
        FROM (
            SELECT time_ns, (state = 'cached')::INTEGER
                - lag((state = 'cached')::INTEGER, 1, 0) OVER (PARTITION BY block_id ORDER BY place) AS change
            FROM block_state WHERE engine_id = {engine}
        ) GROUP BY time_ns
    ),
    eviction AS (
        SELECT step, count(*) AS evicted_blocks FROM block_event
        WHERE engine_id = {engine} AND pool = 0 AND op = 'evict' GROUP BY step
    ),
    admission AS (
        SELECT step, sum(local_cached_tokens)::BIGINT AS cached_tokens,
            sum(external_cached_tokens)::BIGINT AS external_cached_tokens
        FROM request_event WHERE engine_id = {engine} AND op IN ('schedule', 'resume') GROUP BY step
    )
    SELECT s.step, 1 AS steps,
        coalesce(s.end_ns - s.interval_ns, s.start_ns) - {origin} AS start_ns, s.end_ns - {origin} AS end_ns,
        s.duration_ns, s.scheduled_ns - s.start_ns AS schedule_ns, s.update_ns - s.scheduled_ns AS model_ns,
        s.end_ns - s.update_ns AS update_ns,
        {phases},
        s.scheduled_requests, s.scheduled_tokens, s.budget_tokens, s.budget_left_tokens,
        coalesce(a.cached_tokens, 0) AS cached_tokens, coalesce(a.external_cached_tokens, 0) AS external_cached_tokens,
        s.output_tokens, s.finished_requests, s.running, s.waiting,
        s.used_blocks, s.free_blocks, s.cached_blocks, p.cached_free_blocks AS free_cached_blocks,
        coalesce(e.evicted_blocks, 0) AS evicted_blocks, s.preempted_requests,
        s.admission_limit::VARCHAR AS admission_limit, (s.admission_limit <> 'none')::INTEGER AS limited_steps,
        s.limit_request, s.limit_need_blocks, s.limit_free_blocks,
        (c.blocks <> p.cached_free_blocks)::INTEGER AS cache_mismatch{gpu_columns}
    FROM step s
    ASOF LEFT JOIN cached c ON s.scheduled_ns >= c.time_ns
    LEFT JOIN (FROM step_pool WHERE engine_id = {engine}) p ON p.step = s.step
    LEFT JOIN eviction e ON e.step = s.step
    LEFT JOIN admission a ON a.step = s.step
    {gpu_join}
    WHERE s.engine_id = {engine} ORDER BY s.step
"""
"""The blocks' events alone also tell which blocks are free and cached. Steps in which they disagree are counted."""

_GPU = ("busy_ns", "idle_ns", "launch_gap_ns", "kernels", "kernel_ns", "attention_ns", "gemm_ns", "kv_write_ns")
_GPU_JOIN = """
    LEFT JOIN (
        SELECT step, {columns} FROM step_gpu WHERE engine_id = {engine} AND step IS NOT NULL GROUP BY step
    ) g ON g.step = s.step
"""
"""GPU time of steps. Of several GPUs, the one with the most counts."""

_OVERVIEW = """
    SELECT min(step) AS step, count(*) AS steps, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        max(duration_ns) AS duration_ns, max(schedule_ns) AS schedule_ns, max(model_ns) AS model_ns,
        max(update_ns) AS update_ns,
        {phases},
        arg_max(scheduled_requests, scheduled_tokens) AS scheduled_requests, max(scheduled_tokens) AS scheduled_tokens,
        max(budget_tokens) AS budget_tokens, arg_max(budget_left_tokens, scheduled_tokens) AS budget_left_tokens,
        sum(cached_tokens)::BIGINT AS cached_tokens, sum(external_cached_tokens)::BIGINT AS external_cached_tokens,
        sum(output_tokens)::BIGINT AS output_tokens, sum(finished_requests)::BIGINT AS finished_requests,
        max(running) AS running, max(waiting) AS waiting,
        max(used_blocks) AS used_blocks, arg_max(free_blocks, used_blocks) AS free_blocks,
        arg_max(cached_blocks, used_blocks) AS cached_blocks,
        arg_max(free_cached_blocks, used_blocks) AS free_cached_blocks,
        sum(evicted_blocks)::BIGINT AS evicted_blocks, sum(preempted_requests)::BIGINT AS preempted_requests,
        coalesce(mode(admission_limit) FILTER (admission_limit <> 'none'), any_value(admission_limit))
            AS admission_limit,
        sum(limited_steps)::BIGINT AS limited_steps,
        arg_max(limit_request, step) FILTER (limited_steps > 0) AS limit_request,
        arg_max(limit_need_blocks, step) FILTER (limit_need_blocks IS NOT NULL) AS limit_need_blocks,
        arg_max(limit_free_blocks, step) FILTER (limit_need_blocks IS NOT NULL) AS limit_free_blocks{gpu_columns}
    FROM (SELECT *, (row_number() OVER (ORDER BY step) - 1) // {per_bar} AS bar FROM steps)
    GROUP BY bar ORDER BY bar
"""
"""Tokens are those of the bar's step with the most, blocks those of the one that used the most, what happened a sum."""

_SHARES = """
    SELECT step, request, phase::VARCHAR AS phase, scheduled_tokens, computed_tokens, new_blocks
    FROM step_request WHERE engine_id = {engine} AND step BETWEEN {first} AND {last} ORDER BY step, request
"""


def export_steps(source: Source, writer: Writer, engine: int, origin_ns: int) -> dict[str, Any]:
    """An engine's steps; times in ns after `origin_ns`."""
    steps = source.table(_query(source, engine, origin_ns))
    mismatches = pc.sum(steps["cache_mismatch"]).as_py() or 0
    steps = steps.drop_columns(["cache_mismatch"])
    levels = []
    per_bar = -(-steps.num_rows // OVERVIEW_BARS)
    if steps.num_rows > OVERVIEW_FROM:
        bars = summarise(_overview_query(steps, per_bar), steps=steps)
        levels.append(writer.add_cut("steps-all", bars, OVERVIEW_BARS, STEPS, "step"))
    levels.append(writer.add_cut("steps", steps, CHUNK_STEPS, STEPS, "step"))
    return {"total": steps.num_rows, "per_bar": per_bar, "cache_mismatches": mismatches, "levels": levels}


def export_shares(source: Source, writer: Writer, engine: int, steps: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests in each step, cut as the steps are."""
    found = []
    for number, chunk in enumerate(steps["levels"][-1]):
        rows = source.table(_SHARES.format(engine=engine, **chunk))
        found += writer.add(f"shares-{number}", rows, SHARES, first=chunk["first"], last=chunk["last"])
    return found


def _query(source: Source, engine: int, origin_ns: int) -> str:
    phases = ", ".join(f"s.{phase}_requests, s.{phase}_tokens" for phase in PHASES)
    with_gpu = source.has("gpu_activity")
    columns = ", ".join(f"max({name})::BIGINT AS {name}" for name in _GPU)
    return _STEPS.format(
        engine=engine,
        origin=origin_ns,
        phases=phases,
        gpu_columns="".join(f", g.{name} AS gpu_{name}" for name in _GPU) if with_gpu else "",
        gpu_join=_GPU_JOIN.format(engine=engine, columns=columns) if with_gpu else "",
    )


def _overview_query(steps: pa.Table, per_bar: int) -> str:
    phases = ", ".join(
        f"arg_max({phase}_{what}, scheduled_tokens) AS {phase}_{what}"
        for phase in PHASES
        for what in ("requests", "tokens")
    )
    gpu = "".join(f", max({name}) AS {name}" for name in steps.column_names if name.startswith("gpu_"))
    return _OVERVIEW.format(per_bar=per_bar, phases=phases, gpu_columns=gpu)
