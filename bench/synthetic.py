"""A synthetic trace of any size, written by SQL alone.

Every block goes through valid lifetimes (allocate, cache, hits and frees with right reference counts, evict), every
request through a valid life, at hash-scattered moments. The tables beside block events, steps and requests are in
`synthetic_ledger` and `synthetic_gpu`.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import synthetic_gpu
import synthetic_ledger
from synthetic_sizes import BLOCKS, EPOCH_NS, LAYERS, REQUESTS, STEP_NS, STEPS, STEPS_OF_REQUEST, TOKEN_BYTES

from kvtrace.ingest.schema.trace import TRACE_VERSION, create_schema, fill_stored
from kvtrace.queries.trace import JOINS

EVENTS_OF_LIFETIME = 6.18
"""Average that the lifetimes below come to."""


def build(path: Path, block_events: int, memory: str | None = None) -> None:
    """Write a trace of about `block_events` block events and the other tables in proportion, in so much memory."""
    lifetimes = max(1, round(block_events / EVENTS_OF_LIFETIME / BLOCKS))
    with duckdb.connect(config=JOINS) as con:
        if memory:
            con.execute(f"SET memory_limit = '{memory}'")
            con.execute(f"SET temp_directory = '{path}.tmp'")
        # The storage version that ingest writes, which DuckDB 1.5 can read too.
        version = "(STORAGE_VERSION 'v1.5.0')" if duckdb.__version__ >= "2" else ""
        con.execute(f"ATTACH '{path}' AS new_trace {version}")
        con.execute("USE new_trace")
        create_schema(con)
        con.execute("CREATE MACRO roll(a, b, sides) AS (hash(a, b) % sides)::BIGINT")
        con.execute(f"SET VARIABLE epoch = {EPOCH_NS}::BIGINT")
        con.execute(f"SET VARIABLE period = {STEPS * STEP_NS // (lifetimes + 1)}::BIGINT")
        con.execute(
            f"INSERT INTO run VALUES ('trace_version', '{TRACE_VERSION}'), "
            "('source', 'bench/queries.py: synthetic, nobody ran it')"
        )
        con.execute(
            "INSERT INTO engine BY NAME SELECT 1 AS engine_id, 'synthetic' AS model, 16 AS block_size_tokens, "
            f"{BLOCKS} AS blocks, 1 AS kv_groups, 2048 AS max_num_batched_tokens, 64 AS max_num_seqs, "
            f"8192 AS max_model_len, 'fcfs' AS policy, true AS prefix_caching, "
            f"{16 * LAYERS * TOKEN_BYTES} AS block_bytes"
        )
        for statement in (
            _block_events(lifetimes),
            *_steps(),
            *_requests(),
            *synthetic_ledger.statements(),
            *synthetic_gpu.statements(),
        ):
            con.execute(statement)
        fill_stored(con)
        con.execute("DROP MACRO roll")


def _block_events(lifetimes: int) -> str:
    return f"""
        INSERT INTO block_event
        WITH lifetime AS (
            SELECT b.range AS block, l.range AS lifetime,
                (l.range * getvariable('period'))::BIGINT
                    + roll(b.range, l.range, 9 * getvariable('period') // 10) AS start,
                roll(b.range, l.range + 1000, 20) >= 1 AS cached,
                roll(b.range, l.range + 2000, 5) = 0 AS shared,
                roll(b.range, l.range + 3000, 3) AS reuses
            FROM range(1, {BLOCKS + 1}) b, range({lifetimes}) l
        ), bounded AS (
            SELECT *, lead(start, 1, start + getvariable('period') // 10) OVER life - start AS room
            FROM lifetime WINDOW life AS (PARTITION BY block ORDER BY lifetime)
        ), event AS (
            SELECT block, lifetime, start, room, unnest(list_concat(
                [{{share: 0.0, op: 'allocate', refs: 1, taken: 0.0}}],
                CASE WHEN cached THEN [{{share: 0.05, op: 'cache', refs: 1, taken: 0.0}}] ELSE [] END,
                CASE WHEN cached AND shared THEN
                    [{{share: 0.10, op: 'hit', refs: 2, taken: 0.1}},
                        {{share: 0.15, op: 'free', refs: 1, taken: 0.1}}] ELSE [] END,
                [{{share: 0.3, op: 'free', refs: 0, taken: 0.0}}],
                CASE WHEN cached AND reuses >= 1 THEN
                    [{{share: 0.4, op: 'hit', refs: 1, taken: 0.4}},
                        {{share: 0.5, op: 'free', refs: 0, taken: 0.4}}] ELSE [] END,
                CASE WHEN cached AND reuses >= 2 THEN
                    [{{share: 0.7, op: 'hit', refs: 1, taken: 0.7}},
                        {{share: 0.8, op: 'free', refs: 0, taken: 0.7}}] ELSE [] END,
                CASE WHEN cached THEN [{{share: 0.9999, op: 'evict', refs: 0, taken: 0.9999}}] ELSE [] END
            )) AS e
            FROM bounded
        ), timed AS (
            -- Who gives a reference back is who took it.
            SELECT block, lifetime, (start + room * e.share)::BIGINT AS moment, e.op AS op, e.refs AS refs,
                (start + room * e.taken)::BIGINT AS taken
            FROM event
        )
        SELECT 1, getvariable('epoch') + moment, moment // {STEP_NS} + 1, block, op::e_block_op, refs,
            greatest(1, least({REQUESTS}, taken // {STEP_NS} // 2 - roll(block, lifetime, 10))),
            CASE WHEN op IN ('cache', 'evict') THEN hash(block, lifetime) END,
            CASE WHEN op IN ('cache', 'evict') THEN 0 END, 0
        FROM timed ORDER BY moment, block
    """


def _steps() -> tuple[str, ...]:
    start = f"getvariable('epoch') + (i - 1) * {STEP_NS}"
    used = f"({BLOCKS} // 4 + roll(i, 6, {BLOCKS} // 2))"
    return (
        f"""
        INSERT INTO step_schedule
        SELECT 1, {start}, {start} + 100000 + roll(i, 1, 400000), i, 10 + roll(i, 2, 4), roll(i, 3, 30),
            roll(i, 4, 4) // 3, (roll(i, 4, 4) // 3) * (100 + roll(i, 5, 1900)), 0, 0, 10, 10, 0, 0, 2048, 1000,
            {BLOCKS} - {used}, {used}, {used} + roll(i, 7, {BLOCKS} - {used}), (roll(i, 8, 50) = 0)::INTEGER,
            (['none', 'kv_insufficient', 'token_budget', 'max_num_seqs', 'preempted'])[1 + roll(i, 9, 5)]::e_limit,
            CASE WHEN roll(i, 9, 5) > 0 THEN least({REQUESTS}, i // 2 + 1) END,
            CASE WHEN roll(i, 9, 5) = 1 THEN 20 + roll(i, 10, 50) END,
            CASE WHEN roll(i, 9, 5) = 1 THEN roll(i, 11, 20) END,
            CASE WHEN roll(i, 9, 5) = 1 THEN 0 END
        FROM range(1, {STEPS + 1}) s(i)
        """,
        """
        INSERT INTO step_update
        SELECT 1, forward_ns, forward_ns + 200000 + roll(step, 12, 500000), step, 10, step % 2
        FROM (
            SELECT step, scheduled_ns + 8000000 + 4000 * (prefill_tokens + decode_tokens) AS forward_ns
            FROM step_schedule
        )
        """,
    )


def _requests() -> tuple[str, ...]:
    start = "getvariable('epoch') + (2 * r)::BIGINT * " + str(STEP_NS)
    return (
        f"""
        INSERT INTO request
        SELECT r, 1, 'chat-' || r || '-0a1b2c3d', 'chat-' || r, 'session-' || (r // 8), r % 8,
            'tenant-' || (r % 5), CASE WHEN r % 3 = 0 THEN 'adapter' END, 0,
            800, 200, {STEPS_OF_REQUEST}, 16 * roll(r, 1, 40), 0, (roll(r, 2, 25) = 0)::INTEGER,
            {start} - 30000000, {start} - 25000000, {start}, {start} + 40000000,
            {start} + {STEPS_OF_REQUEST * STEP_NS}, 'length'::e_finish_reason
        FROM range(1, {REQUESTS + 1}) q(r)
        """,
        """
        INSERT INTO client_request BY NAME
        SELECT request, external_id AS request_id, 0 AS phase, 'synthetic' AS workload, session, turn, turn = 7 AS last,
            CASE WHEN turn < 7 THEN 'cd' END AS tool, 100.0 AS tool_ms, arrival_ns - 1000 AS due_ns,
            arrival_ns - 500 AS send_ns, first_token_ns + 1000 AS first_token_ns, finished_ns + 1000 AS last_token_ns,
            prompt_tokens, output_tokens, local_cached_tokens AS cached_tokens
        FROM request ORDER BY request
        """,
        "INSERT INTO engine BY NAME SELECT 2 AS engine_id, 'synthetic' AS model, 16 AS block_size_tokens",
        # The first hundred come from a prefill engine, of which no more is there than that.
        f"""
        INSERT INTO request BY NAME
        SELECT {REQUESTS} + request AS request, 2 AS engine_id, 'prefill-' || request AS internal_id, external_id,
            1 AS max_tokens, prompt_tokens, arrival_ns - 9000000 AS arrival_ns, arrival_ns - 8000000 AS queued_ns,
            arrival_ns - 7000000 AS scheduled_ns, arrival_ns - 2000000 AS finished_ns
        FROM request WHERE request <= 100
        """,
        "UPDATE request SET external_cached_tokens = 16 WHERE request <= 100",
        """
        INSERT INTO request_remote BY NAME
        SELECT 1 AS engine_id, arrival_ns AS time_ns, request, 'decode' AS part,
            'prefill-' || request AS remote_request
        FROM request WHERE request <= 100
        """,
        f"""
        INSERT INTO step_request
        WITH share AS (
            SELECT 2 * r + k AS step, r, k, roll(r, 2, 25) = 0 AS preempted
            FROM range(1, {REQUESTS + 1}) q(r), range(1, {STEPS_OF_REQUEST + 1}) s(k)
        ), phase AS (
            -- A preempted request is out in steps 8 and 9 of its life and computes 310 of its 806 tokens again.
            SELECT *,
                CASE WHEN k = 1 THEN 'prefill' WHEN k = 10 AND preempted THEN 'resumed' ELSE 'decode' END AS phase,
                798 + k - CASE WHEN preempted AND k > 10 THEN 3 ELSE 0 END AS computed
            FROM share WHERE NOT (preempted AND k IN (8, 9))
        )
        SELECT 1, step, r, phase::e_phase, CASE phase WHEN 'prefill' THEN 800 WHEN 'resumed' THEN 310 ELSE 1 END,
            CASE phase WHEN 'prefill' THEN 0 WHEN 'resumed' THEN 496 ELSE computed END,
            CASE phase WHEN 'prefill' THEN 50 WHEN 'resumed' THEN 51 ELSE (computed % 16 = 0)::INTEGER END
        FROM phase ORDER BY step, r
        """,
        """
        INSERT INTO request_event
        WITH event AS (
            SELECT request, scheduled_ns AS moment, 'schedule' AS op, 1 AS k FROM request
            UNION ALL SELECT request, first_token_ns, 'first_token', 2 FROM request
            UNION ALL SELECT request, first_token_ns + 100000000, 'preempt', 7 FROM request WHERE preemptions > 0
            UNION ALL SELECT request, first_token_ns + 160000000, 'resume', 10 FROM request WHERE preemptions > 0
            UNION ALL SELECT request, finished_ns, 'finish', 20 FROM request
        )
        SELECT 1, moment, 2 * request + k, request, op::e_request_op,
            CASE WHEN op = 'finish' THEN 'length' END::e_finish_reason, 800 + k, k,
            CASE WHEN op IN ('schedule', 'resume') THEN 16 * roll(request, 1, 40) END,
            CASE WHEN op IN ('schedule', 'resume') THEN 0 END, 51
        FROM event ORDER BY moment
        """,
        """
        INSERT INTO prefix_lookup
        SELECT 1, scheduled_ns - (3 - k) * 1000000, 2 * request + 1, request, 800, 16 * roll(request, 1, 40), NULL,
            roll(request, 1, 40), k = 3, k, false, true, NULL
        FROM request, range(1, 4) t(k) ORDER BY 2
        """,
    )
