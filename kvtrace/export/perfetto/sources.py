"""The tracks of a recording: steps, requests, the KV cache, transfers, pins; and of profiles."""

from __future__ import annotations

from kvtrace.export.perfetto.profiles import PROFILES
from kvtrace.export.perfetto.source import FORWARD, KERNEL, SHARE, WINDOW, Source, lane, named, process
from kvtrace.export.perfetto.tracks import Node

REQUESTS = Source(
    "request",
    """
    WITH life AS (
        SELECT request, min(start_ns) AS start_ns, max(end_ns) AS end_ns, bool_or(end_ns IS NULL) AS open
        FROM request_state GROUP BY request
    ),
    share AS (
        SELECT q.request, min(s.start_ns) AS start_ns
        FROM step_request q JOIN step_schedule s USING (engine_id, step) GROUP BY q.request
    ),
    miss AS (
        SELECT request, arg_min(verdict, time_ns) AS miss_verdict, arg_min(why, time_ns) AS miss_why,
            arg_min(avoidable_tokens, time_ns) AS avoidable_tokens, arg_min(avoidable_ns, time_ns) AS avoidable_ns
        FROM prefix_miss WHERE NOT resumed GROUP BY request
    )
    SELECT least(coalesce(l.start_ns, r.arrival_ns), h.start_ns) AS start_ns,
        CASE WHEN l.request IS NULL THEN coalesce(r.finished_ns, r.arrival_ns)
            WHEN NOT l.open THEN l.end_ns END AS end_ns,
        coalesce(r.external_id, r.internal_id, 'request ' || r.request) AS name,
        r.*, m.miss_verdict, m.miss_why, m.avoidable_tokens, m.avoidable_ns
    FROM request r LEFT JOIN life l USING (request) LEFT JOIN share h USING (request) LEFT JOIN miss m USING (request)
    WHERE r.engine_id IS NOT NULL AND (l.request IS NOT NULL OR r.arrival_ns IS NOT NULL)
    ORDER BY 1, r.request
    """,
    ("engine_id", "request"),
    lane(),
    owns_lanes=True,
    # States lie inside their request: at one time, the end of one request and the start of the next would mix.
    gap_ns=1,
)

SOURCES = (
    REQUESTS,
    Source(
        "request_state",
        "SELECT start_ns, end_ns, state AS name, engine_id, request FROM request_state WHERE engine_id IS NOT NULL "
        "ORDER BY start_ns, request",
        ("engine_id", "request"),
        lane(),
        in_lanes=True,
    ),
    Source(
        "step_request",
        f"""
        SELECT s.start_ns, s.end_ns, q.phase::VARCHAR AS name, q.* EXCLUDE (phase), q.rowid * 8 + {SHARE} AS flow
        FROM step_request q JOIN step s USING (engine_id, step)
        ORDER BY s.start_ns, q.rowid
        """,
        ("engine_id", "request"),
        lane("in steps"),
        in_lanes=True,
    ),
    Source(
        "step",
        f"""
        WITH share AS (
            SELECT engine_id, step, list(rowid * 8 + {SHARE} ORDER BY rowid) AS flows FROM step_request GROUP BY ALL
        ),
        target AS (
            SELECT engine_id, step, activity_id * 8 + {KERNEL} AS flow FROM gpu_attribution
            UNION ALL SELECT engine_id, step, rowid * 8 + {FORWARD} FROM forward
            UNION ALL SELECT engine_id, step, rowid * 8 + {WINDOW} FROM kv_window
        ),
        targets AS (
            SELECT engine_id, step, list(flow ORDER BY flow) AS flows FROM target WHERE step IS NOT NULL GROUP BY ALL
        )
        SELECT s.*, h.flows AS terminate, t.flows AS flow, concat('step ', s.step, ': ', concat_ws(', ',
            CASE WHEN prefill_requests > 0 THEN
                concat(prefill_requests, ' prefill (', prefill_tokens, ' tokens)') END,
            CASE WHEN chunked_prefill_requests > 0 THEN
                concat(chunked_prefill_requests, ' chunked prefill (', chunked_prefill_tokens, ' tokens)') END,
            CASE WHEN resumed_requests > 0 THEN
                concat(resumed_requests, ' resumed (', resumed_tokens, ' tokens)') END,
            CASE WHEN decode_requests > 0 THEN
                concat(decode_requests, ' decode (', decode_tokens, ' tokens)') END)) AS name
        FROM step s
        LEFT JOIN share h ON h.engine_id = s.engine_id AND h.step = s.step
        LEFT JOIN targets t ON t.engine_id = s.engine_id AND t.step = s.step
        ORDER BY s.start_ns, s.engine_id
        """,
        ("engine_id",),
        process("scheduler", "steps"),
    ),
    Source(
        "scheduler",
        """
        SELECT scheduled_ns AS start_ns, engine_id, running, waiting, budget_tokens - budget_left_tokens AS budget_used
        FROM step_schedule ORDER BY start_ns, engine_id
        """,
        ("engine_id",),
        process("scheduler"),
        counters=(
            ("running", "running requests", "requests"),
            ("waiting", "waiting requests", "requests"),
            ("budget_used", "token budget used", "tokens"),
        ),
    ),
    Source(
        "kv_utilisation",
        """
        SELECT time_ns AS start_ns, engine_id, used_blocks, cached_free_blocks, empty_free_blocks,
            CASE WHEN cached_free_blocks IS NULL THEN free_blocks END AS free_blocks
        FROM step_pool WHERE used_blocks IS NOT NULL ORDER BY start_ns, engine_id
        """,
        ("engine_id",),
        process("KV cache"),
        counters=(
            ("used_blocks", "blocks in use", "blocks"),
            ("cached_free_blocks", "blocks free, cached", "blocks"),
            ("empty_free_blocks", "blocks free, empty", "blocks"),
            ("free_blocks", "blocks free", "blocks"),
        ),
    ),
    Source(
        "forward",
        f"""
        SELECT f.*, concat('forward ', f.step) AS name, f.rowid * 8 + {FORWARD} AS terminate
        FROM forward f ORDER BY f.start_ns, f.rowid
        """,
        ("process_id",),
        process("forward passes (host)"),
    ),
    Source(
        "kv_window",
        f"""
        SELECT w.* EXCLUDE (kind), w.kind::VARCHAR AS name, w.rowid * 8 + {WINDOW} AS terminate
        FROM kv_window w ORDER BY w.start_ns, w.rowid
        """,
        ("process_id", "layer"),
        lambda names, key: (names.process(key[0]), Node("KV windows (GPU)"), Node(f"layer {key[1]}", key[1])),
    ),
    Source(
        "pin",
        """
        SELECT start_ns, end_ns, engine_id, cause::VARCHAR AS name, pin, request, requested_ttl_ns, end_reason,
            count(*) AS blocks
        FROM pin GROUP BY ALL ORDER BY start_ns, pin, end_ns
        """,
        ("engine_id", "name"),
        named("KV cache", "pins"),
    ),
    Source(
        "transfer",
        """
        SELECT coalesce(started_ns, submitted_ns) AS start_ns, finished_ns AS end_ns,
            concat(direction, ' ', from_tier, ' to ', to_tier) AS name, * EXCLUDE (finished_ns)
        FROM transfer ORDER BY 1, transfer
        """,
        ("process_id", "name"),
        named("transfers"),
    ),
    Source(
        "transfer_rate",
        """
        WITH span AS (
            SELECT process_id, concat(direction, ' ', from_tier, ' to ', to_tier) AS path,
                coalesce(started_ns, submitted_ns) AS start_ns, finished_ns AS end_ns, bytes
            FROM transfer WHERE finished_ns > coalesce(started_ns, submitted_ns) AND bytes > 0
        ), change AS (
            SELECT process_id, path, start_ns, bytes * 1e9 / (end_ns - start_ns) AS rate, 1 AS transfers FROM span
            UNION ALL SELECT process_id, path, end_ns, -bytes * 1e9 / (end_ns - start_ns), -1 FROM span
        ), moment AS (
            SELECT process_id, path, start_ns, sum(rate) AS rate, sum(transfers) AS transfers FROM change GROUP BY ALL
        )
        SELECT process_id, path, start_ns, CASE WHEN sum(transfers) OVER past = 0 THEN 0
            ELSE round(sum(rate) OVER past)::BIGINT END AS rate
        FROM moment WINDOW past AS (PARTITION BY process_id, path ORDER BY start_ns) ORDER BY start_ns, process_id, path
        """,
        ("process_id", "path"),
        process("transfers"),
        counters=(("rate", "", "bytes/s"),),
    ),
    *PROFILES,
)
