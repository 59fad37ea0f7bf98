-- What did each preemption lose, what did getting it back cost, and what would fetching it have cost?
--
-- One row per preemption, in order. Three prices of the tokens computed again: `added_ms`, the wall time that their steps
-- took beyond that of steps with decode tokens only (view step_time); `recompute_ms`, by the fitted cost model of query
-- cost-model, without its intercept; `fetch_ms`, their bytes over the rate at which this run's connector loaded KV (table
-- transfer_rate), NULL if it loaded nothing. Bytes are those of one rank. The break-even length is the number of tokens
-- from a request's start whose recomputation costs as much as loading them; NULL means never, by this model.
--
-- group: Preemption and eviction
-- needs: request_event
-- param: assumed_gb_per_s DOUBLE = NULL | A rate to assume for fetching, in 10^9 bytes a second.
-- key: time_ns, request, lost_tokens, outcome, queue_ms, recomputed_tokens, recompute_ms
-- worst: queue_ms
-- column: engine_id recorded | The engine.
-- column: step recorded | The step that preempted it.
-- column: time_ns [ns] recorded | When, UNIX time.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: lost_tokens [tokens] recorded | Tokens whose KV was discarded.
-- column: lost_blocks [blocks] recorded | Blocks its block table held.
-- column: lost_bytes [bytes] derived | Bytes of those blocks.
-- column: outcome derived | resumed; finished: it ended while waiting to resume; waiting: still was when the recording
--     ended.
-- column: resume_step recorded | The step that admitted it again.
-- column: queue_ms [ms] derived | Time until then.
-- column: cached_tokens [tokens] recorded | Tokens still found in the GPU prefix cache.
-- column: fetched_tokens [tokens] recorded | Tokens a KV connector supplied.
-- column: verdict derived | Why the rest was not found, as in query prefix-miss.
-- column: recomputed_tokens [tokens] derived | Tokens scheduled in phase `resumed` until it was preempted again or ended.
-- column: recompute_steps [steps] derived | Steps that computed them.
-- column: added_ms [ms] derived | Wall time that computing them added to the run: of each step's, their share by tokens,
--     decode tokens left out. Below 0 if the steps were shorter than usual.
-- column: recompute_ms [ms] derived | Their price by the cost model.
-- column: recomputed_bytes [bytes] derived | Bytes of their KV.
-- column: fetch_ms [ms] derived | Time to load those bytes at this run's measured rate.
-- column: assumed_fetch_ms [ms] inferred | The same at assumed_gb_per_s.
-- column: break_even_tokens [tokens] derived | From this length on, loading at the measured rate is cheaper.
-- column: assumed_break_even_tokens [tokens] inferred | The same at assumed_gb_per_s.

WITH rate AS (
    SELECT
        e.engine_id,
        e.block_bytes,
        e.block_bytes / e.block_size_tokens AS token_bytes,
        c.ns_per_token,
        c.ns_per_token_context,
        token_bytes / t.bytes_per_s * 1e9 AS fetch_ns_per_token,
        token_bytes / $assumed_gb_per_s AS assumed_ns_per_token
    FROM engine e
    LEFT JOIN cost_model c ON c.engine_id = e.engine_id AND c.used
    LEFT JOIN transfer_rate t ON t.engine_id = e.engine_id AND t.direction = 'load'
), break_even AS (
    SELECT
        *,
        CASE
            WHEN fetch_ns_per_token <= ns_per_token + ns_per_token_context THEN 1
            ELSE ceil(2 * (fetch_ns_per_token - ns_per_token) / nullif(ns_per_token_context, 0) - 1)
        END::BIGINT AS break_even_tokens,
        CASE
            WHEN assumed_ns_per_token <= ns_per_token + ns_per_token_context THEN 1
            ELSE ceil(2 * (assumed_ns_per_token - ns_per_token) / nullif(ns_per_token_context, 0) - 1)
        END::BIGINT AS assumed_break_even_tokens
    FROM rate
), recomputed AS (
    SELECT
        r.engine_id,
        r.request,
        p.resume_step,
        sum(r.scheduled_tokens)::BIGINT AS tokens,
        count(*) AS steps,
        sum(a.added_ns * (r.scheduled_tokens / a.tokens)) / 1e6 AS added_ms,
        sum(r.scheduled_tokens * b.ns_per_token + b.ns_per_token_context * (
            r.scheduled_tokens::DOUBLE * r.computed_tokens
            + r.scheduled_tokens::DOUBLE * (r.scheduled_tokens + 1) / 2
        )) / 1e6 AS recompute_ms
    FROM (SELECT * FROM step_request WHERE phase = 'resumed') r
    ASOF JOIN (SELECT * FROM preemption WHERE outcome = 'resumed') p
        ON r.engine_id = p.engine_id AND r.request = p.request AND r.step >= p.resume_step
    LEFT JOIN step_time a ON a.engine_id = r.engine_id AND a.step = r.step
    LEFT JOIN break_even b ON b.engine_id = r.engine_id
    GROUP BY r.engine_id, r.request, p.resume_step
), priced AS (
    SELECT
        p.*,
        CASE WHEN p.outcome = 'resumed' AND EXISTS (FROM step_request) THEN coalesce(c.tokens, 0) END
            AS recomputed_tokens,
        c.steps,
        c.added_ms,
        c.recompute_ms
    FROM preemption p
    LEFT JOIN recomputed c ON c.engine_id = p.engine_id AND c.request = p.request AND c.resume_step = p.resume_step
)
SELECT
    p.engine_id,
    p.step,
    p.time_ns,
    p.request,
    r.external_id,
    p.lost_tokens,
    p.lost_blocks,
    p.lost_blocks * b.block_bytes AS lost_bytes,
    p.outcome,
    p.resume_step,
    (p.resume_ns - p.time_ns) / 1e6 AS queue_ms,
    p.cached_tokens,
    p.fetched_tokens,
    m.verdict,
    p.recomputed_tokens,
    CASE WHEN p.recomputed_tokens IS NOT NULL THEN coalesce(p.steps, 0) END AS recompute_steps,
    CASE WHEN p.recomputed_tokens = 0 THEN 0 ELSE p.added_ms END AS added_ms,
    CASE WHEN p.recomputed_tokens = 0 THEN 0 ELSE p.recompute_ms END AS recompute_ms,
    round(p.recomputed_tokens * b.token_bytes)::BIGINT AS recomputed_bytes,
    p.recomputed_tokens * b.fetch_ns_per_token / 1e6 AS fetch_ms,
    p.recomputed_tokens * b.assumed_ns_per_token / 1e6 AS assumed_fetch_ms,
    b.break_even_tokens,
    b.assumed_break_even_tokens
FROM priced p
LEFT JOIN break_even b ON b.engine_id = p.engine_id
LEFT JOIN request r ON r.request = p.request
LEFT JOIN prefix_miss m ON m.engine_id = p.engine_id AND m.request = p.request AND m.step = p.resume_step
ORDER BY p.engine_id, p.time_ns, p.request
