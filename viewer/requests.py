"""The requests of a page, the stretches of their lanes, and what preempted them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.viewer.chunks import Writer, cut, span
from kvtrace.viewer.contract import PREEMPTIONS, REQUEST_STATES, REQUESTS, SEGMENTS
from kvtrace.viewer.source import Source, summarise

CHUNK_REQUESTS = 4096
OVERVIEW_REQUESTS = 2000

_REQUESTS = """
    WITH own AS (
        SELECT *, coalesce(queued_ns, arrival_ns, scheduled_ns, first_token_ns, finished_ns) AS begin_ns
        FROM request WHERE engine_id = {engine} AND begin_ns IS NOT NULL
    ),
    share AS (
        SELECT request, min(step) AS first_step, max(step) AS last_step, count(*) AS steps,
            coalesce(sum(scheduled_tokens) FILTER (phase = 'resumed'), 0)::BIGINT AS recomputed_tokens
        FROM step_request WHERE engine_id = {engine} GROUP BY request
    ),
    loss AS (
        SELECT request, sum(computed_tokens)::BIGINT AS released_tokens
        FROM request_event WHERE engine_id = {engine} AND op = 'preempt' GROUP BY request
    ),
    wait AS (
        SELECT limit_request AS request, count(*) AS head_steps, mode(admission_limit::VARCHAR) AS wait_limit,
            arg_min(limit_need_blocks, step) AS wait_need_blocks, arg_min(limit_free_blocks, step) AS wait_free_blocks,
            min(step) AS wait_step
        FROM step_schedule WHERE engine_id = {engine} AND admission_limit <> 'none' GROUP BY limit_request
    ),
    miss AS (
        SELECT request, arg_min(verdict, time_ns) AS miss_verdict, arg_min(why, time_ns) AS miss_why,
            arg_min(avoidable_tokens, time_ns) AS avoidable_tokens,
            arg_min(avoidable_ns, time_ns) AS avoidable_duration_ns,
            arg_min(lost_ns, time_ns) AS miss_lost_ns, arg_min(other_request, time_ns) AS miss_request
        FROM prefix_miss WHERE engine_id = {engine} AND NOT resumed GROUP BY request
    )
    SELECT c.request, internal_id, external_id, session, tenant, lora, turn, priority, prompt_tokens, max_tokens,
        output_tokens, local_cached_tokens, external_cached_tokens, preemptions, released_tokens, recomputed_tokens,
        first_step, last_step, steps, finish_reason::VARCHAR AS finish_reason,
        head_steps, wait_limit, wait_need_blocks, wait_free_blocks, wait_step,
        miss_verdict, miss_why, avoidable_tokens, avoidable_duration_ns, miss_request,
        miss_lost_ns - {origin} AS miss_lost_ns,
        begin_ns - {origin} AS start_ns,
        greatest(begin_ns, coalesce(finished_ns, CASE WHEN {scheduled} THEN {last} END, begin_ns)) - {origin} AS end_ns,
        arrival_ns - {origin} AS arrival_ns, queued_ns - {origin} AS queued_ns, scheduled_ns - {origin} AS scheduled_ns,
        first_token_ns - {origin} AS first_token_ns, finished_ns - {origin} AS finished_ns,
        CASE WHEN session IS NOT NULL THEN
            lag(finished_ns) OVER (PARTITION BY session ORDER BY turn, begin_ns) - {origin} END AS gap_start_ns
    FROM own c LEFT JOIN share USING (request) LEFT JOIN loss USING (request) LEFT JOIN miss USING (request)
        LEFT JOIN wait USING (request)
    ORDER BY begin_ns, c.request
"""

_STATES = """
    SELECT request, list_position({states}, state) - 1 AS state, start_ns - {origin} AS start_ns,
        coalesce(end_ns, {last}) - start_ns AS duration_ns, step
    FROM request_state WHERE engine_id = {engine} AND coalesce(end_ns, {last}) > start_ns
"""
"""Stretches of request states; what goes on when the recording ends lasts until then."""

_SEGMENTS = """
    SELECT row, state, start_ns, duration_ns, step FROM rows JOIN states USING (request) ORDER BY row, start_ns
"""

_PREEMPTIONS = """
    WITH lost AS (
        SELECT request, step, time_ns, computed_tokens, blocks FROM request_event
        WHERE engine_id = {engine} AND op = 'preempt'
    ),
    moved AS (
        SELECT rowid AS place, step, op, block_id, request FROM block_event
        WHERE engine_id = {engine} AND pool = 0 AND op IN ('free', 'allocate') AND step IN (SELECT step FROM lost)
    ),
    freed AS (
        SELECT b.request, b.step, b.block_id, b.place, max(b.place) OVER (PARTITION BY b.request, b.step) AS last_place
        FROM moved b JOIN lost l ON l.request = b.request AND l.step = b.step WHERE b.op = 'free'
    ),
    gainer AS (
        SELECT f.request, f.step, b.request AS preempted_for
        FROM (SELECT DISTINCT request, step, last_place FROM freed) f
        ASOF JOIN (FROM moved WHERE op = 'allocate') b ON b.step = f.step AND b.place > f.last_place
    ),
    taken AS (
        SELECT f.request, f.step, count(DISTINCT b.block_id) AS taken_blocks
        FROM freed f JOIN moved b ON b.step = f.step AND b.block_id = f.block_id AND b.place > f.place
        WHERE b.op = 'allocate' AND b.request <> f.request GROUP BY ALL
    )
    SELECT l.request, l.step, l.time_ns - {origin} AS start_ns, l.computed_tokens, l.blocks,
        nullif(preempted_for, l.request) AS preempted_for, coalesce(taken_blocks, 0) AS taken_blocks,
        r.step AS resume_step, r.time_ns - {origin} AS resume_ns
    FROM lost l LEFT JOIN gainer g ON g.request = l.request AND g.step = l.step
    LEFT JOIN taken m ON m.request = l.request AND m.step = l.step
    ASOF LEFT JOIN (
        SELECT request, step, time_ns FROM request_event WHERE engine_id = {engine} AND op = 'resume'
    ) r ON r.request = l.request AND r.step > l.step
    ORDER BY start_ns, l.request
"""
"""The request that a preemption was for (derived): the scheduler takes a victim's blocks when another request's
allocation fails, so it is the request of the first allocation in that step after the victim's blocks were freed.
`taken_blocks` of them were allocated to others in the same step; the rest went to the end of the free queue."""

_SPREAD = "request * 2654435761 % 4294967296"
"""Multiples of the golden ratio: the first so many requests in this order are evenly spread over all."""

_LONGEST = f"SELECT * FROM requests ORDER BY end_ns - start_ns DESC, {_SPREAD} LIMIT {OVERVIEW_REQUESTS}"


def export_requests(source: Source, writer: Writer, engine: int, origin_ns: int, last_ns: int) -> dict[str, Any]:
    """An engine's requests by start, and of many the longest as an overview; times after `origin_ns`."""
    places = {"engine": engine, "origin": origin_ns, "last": last_ns}
    scheduled = f"EXISTS (FROM request_event WHERE engine_id = {engine})"  # else nothing says that it still runs
    requests = source.table(_REQUESTS.format(scheduled=scheduled, **places))
    states = source.table(_STATES.format(states=list(REQUEST_STATES), **places))
    total = source.row(f"SELECT count(*) AS requests FROM request WHERE engine_id = {engine}")["requests"]
    levels = []
    if requests.num_rows > CHUNK_REQUESTS:
        longest = summarise(f"FROM ({_LONGEST}) ORDER BY start_ns, request", requests=requests)
        levels.append(_chunk(writer, "requests-all", longest, states))
    details = [
        reference
        for number, part in enumerate(cut(requests, CHUNK_REQUESTS))
        for reference in _chunk(writer, f"requests-{number}", part, states)
    ]
    preemptions = writer.add("preemptions", source.table(_PREEMPTIONS.format(**places)), PREEMPTIONS)
    return {"total": total, "levels": [*levels, details], "preemptions": preemptions}


def _chunk(writer: Writer, name: str, part: pa.Table, states: pa.Table) -> list[dict[str, Any]]:
    """The requests of a chunk and, in a second one, the stretches of their lanes."""
    numbers = part["request"]
    rows = pa.table([numbers, pa.array(range(len(numbers)), pa.int64())], names=["request", "row"])
    lanes = summarise(_SEGMENTS, rows=rows, states=states)
    stretches = writer.add(f"segments-{name}", lanes, SEGMENTS)
    facts = {**span(part), "first": pc.min(numbers).as_py(), "last": pc.max(numbers).as_py()}
    return writer.add(name, part, REQUESTS, segments=stretches[0]["id"] if stretches else None, **facts)
