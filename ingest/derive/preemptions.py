"""The view that every question about preemptions starts from."""

from __future__ import annotations

from kvtrace.ingest.schema.declare import BIGINT, INTEGER, TEXT, Table, column

PREEMPTION = Table(
    "preemption",
    "A preemption, and what became of the request: its event and the next one of the request's life.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("step", INTEGER, "The step that preempted it."),
        column("time_ns", BIGINT, "When."),
        column("request", INTEGER, "The request."),
        column("output_tokens", INTEGER, "Output tokens it had by then."),
        column("lost_tokens", INTEGER, "Tokens whose KV was discarded."),
        column("lost_blocks", INTEGER, "Blocks its block table held."),
        column("outcome", TEXT, "resumed; finished: it ended while waiting to resume; waiting: still was when the "
                                "recording ended (derived)."),
        column("resume_step", INTEGER, "The step that admitted it again; NULL if none did."),
        column("resume_ns", BIGINT, "When it was admitted again."),
        column("cached_tokens", INTEGER, "Tokens then found in the GPU prefix cache."),
        column("fetched_tokens", INTEGER, "Tokens then supplied by a KV connector."),
    ),
    view="""
        WITH turn AS (
            SELECT *, lead(op) OVER life AS next_op, lead(time_ns) OVER life AS next_ns,
                lead(step) OVER life AS next_step, lead(local_cached_tokens) OVER life AS next_local,
                lead(external_cached_tokens) OVER life AS next_external
            FROM request_event
            WHERE op IN ('preempt', 'resume', 'finish')
            WINDOW life AS (PARTITION BY engine_id, request ORDER BY time_ns, rowid)
        ), ended AS (
            SELECT *, next_op IS NOT DISTINCT FROM 'resume' AS resumed FROM turn WHERE op = 'preempt'
        )
        SELECT engine_id, step, time_ns, request, output_tokens, computed_tokens AS lost_tokens, blocks AS lost_blocks,
            CASE WHEN resumed THEN 'resumed' WHEN next_op IS NOT NULL THEN 'finished' ELSE 'waiting' END AS outcome,
            CASE WHEN resumed THEN next_step END AS resume_step, CASE WHEN resumed THEN next_ns END AS resume_ns,
            CASE WHEN resumed THEN next_local END AS cached_tokens,
            CASE WHEN resumed THEN next_external END AS fetched_tokens
        FROM ended
    """,
)  # fmt: skip
