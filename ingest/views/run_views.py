"""Views that comparisons of runs and studies of jobs start from: a run's setting, turns of jobs, first blocks."""

from __future__ import annotations

from kvtrace.events import BOOL, HASH
from kvtrace.ingest.schema.declare import BIGINT, DOUBLE, INTEGER, TEXT, Table, column

RUN_SETTING = Table(
    "run_setting",
    "What this run was, in one row, to tell it from others when answers of several traces are put together. Engines "
    "that differ (data parallel, say) give NULL where one number would be wrong, and texts joined by commas.",
    (
        column("vllm_version", TEXT, "vLLM's version."),
        column("model", TEXT, "Model name or path."),
        column("engines", BIGINT, "Engines; 0 if the trace is not of a recording."),
        column("scheduler", TEXT, "The scheduler's class; NULL if it was not recorded."),
        column("policy", TEXT, "vLLM's scheduling policy; the class's name where the scheduler is not vLLM's own "
                               "(derived)."),
        column("blocks", BIGINT, "GPU blocks that requests can use, over all engines."),
        column("block_size_tokens", INTEGER, "Tokens a block."),
        column("capacity_tokens", BIGINT, "The KV budget: tokens that fit into the GPU's blocks if every KV cache "
                                          "group keeps all of them (derived)."),
        column("max_num_seqs", INTEGER, "Most running requests of an engine."),
        column("max_num_batched_tokens", INTEGER, "Most tokens a step of an engine."),
        column("max_model_len", INTEGER, "Longest sequence."),
        column("prefix_caching", BOOL, "Prefix caching is on."),
        column("chunked_prefill", BOOL, "Chunked prefill is on."),
        column("async_scheduling", BOOL, "Steps are scheduled ahead of their results."),
        column("connector", TEXT, "KV connector; NULL without one."),
        column("host_bytes", BIGINT, "KV that the connector's tier in host memory holds, of one rank's, over all "
                                     "engines; NULL if it does not tell (derived)."),
        column("cache_mode", TEXT, "off, prefix, or either with `+` and the connector (derived)."),
        column("tp_size", INTEGER, "Tensor-parallel size."),
        column("pp_size", INTEGER, "Pipeline-parallel size."),
        column("dp_size", INTEGER, "Data-parallel size."),
        column("requests", BIGINT, "Requests that arrived."),
        column("jobs", BIGINT, "Different session tags among them."),
        column("first_arrival_ns", BIGINT, "The first request's arrival."),
        column("last_arrival_ns", BIGINT, "The last request's arrival."),
        column("requests_per_s", DOUBLE, "Measured arrival rate: requests after the first over the time from the "
                                         "first to the last arrival (derived)."),
        column("jobs_per_s", DOUBLE, "The same of jobs, by their first requests (derived)."),
    ),
    view="""
        WITH host AS (
            SELECT sum(c.capacity_blocks * coalesce(c.blocks_per_chunk, 1) * e.block_bytes)::BIGINT AS bytes
            FROM connector c JOIN engine e ON e.engine_id = c.process_id
            WHERE c.role = 'scheduler' AND c.tier = 'cpu'
        ), engines AS (
            SELECT count(*) AS engines,
                string_agg(DISTINCT model, ', ' ORDER BY model) AS model,
                string_agg(DISTINCT scheduler, ', ' ORDER BY scheduler) AS scheduler,
                string_agg(DISTINCT policy_name, ', ' ORDER BY policy_name) AS policy,
                sum(blocks)::BIGINT AS blocks,
                CASE WHEN min(block_size_tokens) = max(block_size_tokens) THEN min(block_size_tokens) END
                    AS block_size_tokens,
                sum(blocks::BIGINT * block_size_tokens // greatest(coalesce(kv_groups, 1), 1))::BIGINT
                    AS capacity_tokens,
                CASE WHEN min(max_num_seqs) = max(max_num_seqs) THEN min(max_num_seqs) END AS max_num_seqs,
                CASE WHEN min(max_num_batched_tokens) = max(max_num_batched_tokens) THEN min(max_num_batched_tokens) END
                    AS max_num_batched_tokens,
                CASE WHEN min(max_model_len) = max(max_model_len) THEN min(max_model_len) END
                    AS max_model_len,
                CASE WHEN bool_and(prefix_caching) = bool_or(prefix_caching) THEN bool_and(prefix_caching) END
                    AS prefix_caching,
                CASE WHEN bool_and(chunked_prefill) = bool_or(chunked_prefill) THEN bool_and(chunked_prefill) END
                    AS chunked_prefill,
                CASE WHEN bool_and(async_scheduling) = bool_or(async_scheduling) THEN bool_and(async_scheduling) END
                    AS async_scheduling,
                string_agg(DISTINCT connector, ', ' ORDER BY connector) AS connector,
                max(tp_size) AS tp_size, max(pp_size) AS pp_size, max(dp_size) AS dp_size
            FROM (
                SELECT *, CASE WHEN scheduler IS NULL OR scheduler LIKE 'vllm.%' THEN policy
                    ELSE split_part(scheduler, '.', -1) END AS policy_name
                FROM engine
            )
        ), arrival AS (
            SELECT session, coalesce(arrival_ns, queued_ns) AS ns FROM request
        ), arrivals AS (
            SELECT count(*) AS requests, min(ns) AS first_ns, max(ns) AS last_ns,
                (count(ns) - 1) * 1e9 / nullif(max(ns) - min(ns), 0) AS per_s
            FROM arrival
        ), jobs AS (
            SELECT count(*) AS jobs, (count(ns) - 1) * 1e9 / nullif(max(ns) - min(ns), 0) AS per_s
            FROM (SELECT min(ns) AS ns FROM arrival WHERE session IS NOT NULL GROUP BY session)
        )
        SELECT (SELECT any_value(value) FROM run WHERE key = 'vllm_version') AS vllm_version,
            e.model, e.engines, e.scheduler, e.policy, e.blocks, e.block_size_tokens, e.capacity_tokens, e.max_num_seqs,
            e.max_num_batched_tokens, e.max_model_len, e.prefix_caching, e.chunked_prefill, e.async_scheduling,
            e.connector, host.bytes AS host_bytes,
            CASE WHEN e.prefix_caching IS NOT NULL THEN
                CASE WHEN e.prefix_caching THEN 'prefix' ELSE 'off' END || coalesce('+' || e.connector, '') END
                AS cache_mode,
            e.tp_size, e.pp_size, e.dp_size, a.requests, j.jobs, a.first_ns AS first_arrival_ns,
            a.last_ns AS last_arrival_ns, a.per_s AS requests_per_s, j.per_s AS jobs_per_s
        FROM engines e, host, arrivals a, jobs j
    """,
)  # fmt: skip

JOB_TURN = Table(
    "job_turn",
    "A turn of a job: a request with a session tag.",
    (
        column("request", INTEGER, "The request."),
        column("engine_id", INTEGER, "The engine that served it."),
        column("session", TEXT, "The job: its session tag."),
        column("turn", INTEGER, "Turn tag, if the client passed one."),
        column("turn_number", BIGINT, "Its place in the job, counted from 1 (derived): by the turn tag, without one "
                                      "by arrival. Requests of one tag share it."),
        column("arrival_ns", BIGINT, "When it arrived."),
        column("finished_ns", BIGINT, "When it ended; NULL if it had not when the recording did."),
        column("duration_ns", BIGINT, "finished_ns - arrival_ns: the turn's duration."),
        column("completed", BOOL, "It ended, and not by an abort, an error or a refusal."),
    ),
    view="""
        SELECT request, engine_id, session, turn,
            dense_rank() OVER (PARTITION BY session ORDER BY turn NULLS LAST,
                CASE WHEN turn IS NULL THEN coalesce(arrival_ns, queued_ns) END,
                CASE WHEN turn IS NULL THEN request END) AS turn_number,
            coalesce(arrival_ns, queued_ns) AS arrival_ns, finished_ns,
            finished_ns - coalesce(arrival_ns, queued_ns) AS duration_ns,
            finished_ns IS NOT NULL AND coalesce(finish_reason NOT IN ('abort', 'ignored', 'error'), true) AS completed
        FROM request WHERE session IS NOT NULL
    """,
)  # fmt: skip

FIRST_BLOCK = Table(
    "first_block",
    "The content of each request's first block, and who else had it (derived): requests that share no first block "
    "share no prefix that vLLM could reuse. A request whose first block never became full or was not cached has no "
    "row. It reads all block events, so ask once.",
    (
        column("request", INTEGER, "The request."),
        column("engine_id", INTEGER, "The engine."),
        column("block_hash", HASH, "Content hash of its first block, in KV cache group 0."),
        column("earlier_requests", BIGINT, "Requests of the engine with the same first block, admitted before it."),
        column("later_requests", BIGINT, "The same, admitted after it."),
    ),
    view="""
        WITH held AS (
            SELECT t.engine_id, t.request, arg_min(t.block_id, t.step) AS block_id, any_value(r.scheduled_ns) AS ns,
                any_value(r.local_cached_tokens) > 0 AS hit
            FROM block_table t JOIN request r USING (request)
            WHERE t.kv_group = 0 AND t.position = 0 GROUP BY t.engine_id, t.request
        ), cached AS (
            SELECT engine_id, block_id, time_ns, block_hash
            FROM block_event WHERE pool = 0 AND op = 'cache' AND kv_group = 0
        ), content AS (
            -- A hit block was cached before the request was admitted; another becomes cached when it is full.
            SELECT h.engine_id, h.request, h.ns, c.block_hash
            FROM (FROM held WHERE hit) h ASOF JOIN cached c
                ON h.engine_id = c.engine_id AND h.block_id = c.block_id AND h.ns >= c.time_ns
            UNION ALL
            SELECT h.engine_id, h.request, h.ns, c.block_hash
            FROM (FROM held WHERE hit IS DISTINCT FROM true) h
            ASOF JOIN cached c ON h.engine_id = c.engine_id AND h.block_id = c.block_id AND h.ns <= c.time_ns
            JOIN request r ON r.request = h.request
            WHERE r.finished_ns IS NULL OR c.time_ns <= r.finished_ns
        )
        SELECT request, engine_id, block_hash,
            row_number() OVER admitted - 1 AS earlier_requests,
            count(*) OVER (PARTITION BY engine_id, block_hash) - row_number() OVER admitted AS later_requests
        FROM content WINDOW admitted AS (PARTITION BY engine_id, block_hash ORDER BY ns, request)
    """,
)

PROMPT_CLASS = Table(
    "prompt_class",
    "Requests that generated, by what the prefix cache could do for them (derived). Two requests share a first block "
    "if vLLM gave it the same content hash (view first_block); a prompt shorter than a block is cold and unique. It "
    "reads all block events, so ask once.",
    (
        column("request", INTEGER, "The request."),
        column("engine_id", INTEGER, "The engine."),
        column("session", TEXT, "Its session tag."),
        column("place", BIGINT, "Its place in order of arrival, counted from 1."),
        column("at_s", DOUBLE, "When it arrived, from the trace's first arrival, s."),
        column("prompt_tokens", INTEGER, "Prompt length."),
        column("hit_tokens", BIGINT, "Tokens found at first admission, by either cache."),
        column("ttft_ns", BIGINT, "From arrival to the first token."),
        column("queue_ns", BIGINT, "From arrival to the first admission."),
        column("earlier_requests", BIGINT, "Requests with the same first block, admitted before it; NULL if unknown."),
        column("warmth", TEXT, "cold: no earlier request had its first block, so no hit was possible; warm_hit: one "
                               "had, and something was found; warm_miss: one had, and nothing was found; off: prefix "
                               "caching was; unknown: the content of its first block was not recorded."),
        column("sharing", TEXT, "shared: another request, earlier or later, has its first block; unique: none has; "
                                "unknown."),
    ),
    view="""
        WITH arrived AS (
            SELECT *, (arrival_ns - min(arrival_ns) OVER ()) / 1e9 AS at_s,
                row_number() OVER (ORDER BY arrival_ns, request) AS place,
                coalesce(local_cached_tokens, 0) + coalesce(external_cached_tokens, 0) AS hit_tokens
            FROM request
        ), looked_up AS (
            SELECT request, bool_or(enabled) AS enabled FROM prefix_lookup GROUP BY request
        )
        SELECT a.request, a.engine_id, a.session, a.place, a.at_s, a.prompt_tokens, a.hit_tokens,
            a.first_token_ns - a.arrival_ns AS ttft_ns, a.scheduled_ns - a.arrival_ns AS queue_ns, f.earlier_requests,
            CASE
                WHEN l.enabled IS NOT TRUE THEN 'off'
                WHEN a.hit_tokens > 0 THEN 'warm_hit'
                WHEN f.earlier_requests > 0 THEN 'warm_miss'
                WHEN f.earlier_requests = 0 OR a.prompt_tokens < e.block_size_tokens THEN 'cold'
                ELSE 'unknown'
            END AS warmth,
            CASE
                WHEN f.earlier_requests + f.later_requests > 0 THEN 'shared'
                WHEN f.request IS NOT NULL OR a.prompt_tokens < e.block_size_tokens THEN 'unique'
                ELSE 'unknown'
            END AS sharing
        FROM arrived a
        LEFT JOIN looked_up l USING (request)
        LEFT JOIN first_block f USING (request)
        LEFT JOIN engine e ON e.engine_id = a.engine_id
        WHERE a.first_token_ns IS NOT NULL
    """,
)  # fmt: skip

STUDIES: tuple[Table, ...] = (RUN_SETTING, JOB_TURN, FIRST_BLOCK, PROMPT_CLASS)
