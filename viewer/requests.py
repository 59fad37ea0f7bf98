"""The request columns of a page, and the stretches of their lanes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvtrace.viewer.encode import delta, shift
from kvtrace.viewer.lanes import STATES, Turn, segments
from kvtrace.viewer.source import Columns, Source

_CHOSEN = """
    chosen AS (
        SELECT *, coalesce(queued_ns, arrival_ns, scheduled_ns, first_token_ns, finished_ns) AS start_ns
        FROM request WHERE engine_id = {engine} AND start_ns IS NOT NULL
        ORDER BY coalesce(finished_ns, {last_ns}) - start_ns DESC, request LIMIT {max_rows}
    )
"""

_REQUESTS = """
    WITH {chosen},
    share AS (
        SELECT request, min(step) AS first_step, max(step) AS last_step, count(*) AS steps,
            coalesce(sum(scheduled_tokens) FILTER (phase = 'resumed'), 0)::BIGINT AS recomputed_tokens
        FROM step_request WHERE engine_id = {engine} AND request IN (SELECT request FROM chosen) GROUP BY request
    ),
    loss AS (
        SELECT request, sum(computed_tokens)::BIGINT AS released_tokens
        FROM request_event WHERE engine_id = {engine} AND op = 'preempt' GROUP BY request
    ),
    miss AS (
        SELECT request, arg_min(verdict, time_ns) AS miss_verdict, arg_min(why, time_ns) AS miss_why,
            arg_min(avoidable_tokens, time_ns) AS avoidable_tokens, arg_min(avoidable_ns, time_ns) AS avoidable_ns
        FROM prefix_miss WHERE engine_id = {engine} AND NOT resumed GROUP BY request
    )
    SELECT c.request, internal_id, external_id, session, turn, priority, prompt_tokens, max_tokens, output_tokens,
        local_cached_tokens, external_cached_tokens, preemptions, released_tokens,
        recomputed_tokens, first_step, last_step, steps,
        finish_reason::VARCHAR AS finish_reason, miss_verdict, miss_why, avoidable_tokens, avoidable_ns,
        start_ns, arrival_ns, queued_ns, scheduled_ns, first_token_ns, finished_ns
    FROM chosen c LEFT JOIN share USING (request) LEFT JOIN loss USING (request) LEFT JOIN miss USING (request)
    ORDER BY start_ns, c.request
"""

_TURNS = """
    WITH {chosen},
    turn AS (
        SELECT request, time_ns, step, op::VARCHAR AS op
        FROM request_event WHERE engine_id = {engine} AND request IN (SELECT request FROM chosen)
    ),
    resume AS (FROM turn WHERE op = 'resume'),
    share AS (
        SELECT r.request, r.step, r.phase = 'resumed' AS again, u.end_ns
        FROM step_request r LEFT JOIN step_update u ON u.engine_id = r.engine_id AND u.step = r.step
        WHERE r.engine_id = {engine} AND r.request IN (SELECT request FROM resume)
    ),
    recomputed AS (
        SELECT t.request, coalesce(max(s.end_ns) FILTER (s.again), t.time_ns) AS time_ns
        FROM share s ASOF JOIN resume t ON s.request = t.request AND s.step >= t.step
        GROUP BY t.request, t.step, t.time_ns HAVING NOT bool_or(s.again AND s.end_ns IS NULL)
    )
    SELECT request, start_ns AS time_ns, 'queued' AS op FROM chosen
    UNION ALL SELECT request, time_ns, op FROM turn
    UNION ALL SELECT request, time_ns, 'recomputed' FROM recomputed
"""
"""A resumed request computes tokens again in steps of that phase. It has none where all its KV was still in the prefix
cache, and then goes on at once."""


def export_requests(source: Source, engine: int, origin_ns: int, last_ns: int, max_rows: int) -> dict[str, Any]:
    """An engine's requests, the `max_rows` longest ones if there are more; times in ns after `origin_ns`."""
    chosen = _CHOSEN.format(engine=engine, last_ns=last_ns, max_rows=max_rows)
    columns = source.columns(_REQUESTS.format(engine=engine, chosen=chosen))
    turns = source.columns(_TURNS.format(engine=engine, chosen=chosen))
    total = source.row(f"SELECT count(*) AS requests FROM request WHERE engine_id = {engine}")["requests"]
    return {
        "total": total,
        "columns": _relative(columns, origin_ns),
        "segments": _lanes(columns["request"], turns, origin_ns, last_ns),
    }


def _relative(columns: Columns, origin_ns: int) -> Columns:
    durations = ("avoidable_ns",)
    times = {
        name: shift(values, origin_ns)
        for name, values in columns.items()
        if name.endswith("_ns") and name not in durations
    }
    return {**columns, **times}


def _lanes(requests: list[int], turns: Columns, origin_ns: int, last_ns: int) -> dict[str, Any]:
    turns_of: dict[int, list[Turn]] = defaultdict(list)
    for request, time_ns, op in zip(turns["request"], turns["time_ns"], turns["op"], strict=True):
        turns_of[request].append(Turn(time_ns, op))
    rows, states, starts, durations = [], [], [], []
    for row, request in enumerate(requests):
        for segment in segments(turns_of[request], last_ns):
            rows.append(row)
            states.append(STATES.index(segment.state))
            starts.append(segment.start_ns - origin_ns)
            durations.append(segment.end_ns - segment.start_ns)
    return {"row": delta(rows), "state": states, "start_ns": delta(starts), "duration_ns": durations}
