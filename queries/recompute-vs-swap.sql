-- How long does a request take to get its lost KV back, by recomputing and by fetching it?
--
-- Covers every admission at which KV that had existed was gone from the GPU: after a preemption, or because its prefix
-- had been evicted. The strategy is what the engine did: fetched, if a connector supplied tokens; recomputed, if none
-- did; cached, if after a preemption all of it was still found. The overhead runs from the admitting lookup to the next
-- token: the end of the last step in phase `resumed` (of the first step where there was none), or the request's first
-- token. It is recorded wall time, so it includes other requests' tokens in the same steps and, after an eviction, the
-- tokens that are new. Beside it are the modelled prices of recomputing and of fetching the lost tokens. Each event
-- counts once in each dimension: lost tokens, sequence length, running requests after the step's scheduling, free share
-- of the pool.
--
-- group: Preemption and eviction
-- figure: KV access study (IPDPS'25): resume overhead of recomputing and swapping against block size, evicted tokens,
--     sequence length, number of requests, free KV memory and model.
-- needs: prefix_miss
-- param: dimension VARCHAR(lost_tokens sequence_tokens running_requests free_share) = NULL | Only one of
--     these dimensions.
-- param: assumed_gb_per_s DOUBLE = NULL | A rate to assume for fetching, in 10^9 bytes a second.
-- words: offload, worth, fetch
-- key: dimension, at_least, below, strategy, events, mean_overhead_ms
-- column: engine_id recorded | The engine.
-- column: model recorded | Model name or path.
-- column: block_size_tokens [tokens] recorded | Tokens a block.
-- column: dimension derived | What the buckets are of.
-- column: at_least derived | Lower bound of the bucket, inclusive: tokens, requests or a share.
-- column: below derived | Upper bound of the bucket, exclusive.
-- column: cause derived | preemption or eviction.
-- column: strategy derived | recomputed, fetched or cached.
-- column: events derived | Such admissions.
-- column: mean_lost_tokens [tokens] derived | Mean tokens that had been known and were not in the GPU's prefix cache.
-- column: mean_overhead_ms [ms] derived | Mean time from the admission to the next token.
-- column: p50_overhead_ms [ms] derived | Median.
-- column: p90_overhead_ms [ms] derived | Nine tenths took at most this long.
-- column: mean_recompute_ms [ms] derived | Mean price of computing the lost tokens, by query cost-model.
-- column: mean_fetch_ms [ms] derived | Mean time to load them at this run's measured rate; NULL if nothing was loaded.
-- column: mean_assumed_fetch_ms [ms] inferred | The same at assumed_gb_per_s.

WITH preemption AS (
    SELECT engine_id, request, time_ns, computed_tokens FROM request_event WHERE op = 'preempt'
), gone AS (
    SELECT
        m.engine_id,
        m.request,
        m.step,
        m.time_ns,
        m.resumed,
        m.queried_tokens,
        coalesce(m.external_hit_tokens, 0) AS fetched_tokens,
        m.local_hit_tokens,
        CASE
            WHEN m.resumed THEN greatest(p.computed_tokens - m.local_hit_tokens, 0)
            WHEN m.verdict IN ('evicted', 'evicted_from_tier', 'reset')
                THEN m.avoidable_tokens + coalesce(m.external_hit_tokens, 0)
            ELSE coalesce(m.external_hit_tokens, 0)
        END AS lost_tokens
    FROM prefix_miss m
    ASOF LEFT JOIN preemption p ON m.engine_id = p.engine_id AND m.request = p.request AND m.time_ns >= p.time_ns
), again AS (
    SELECT
        g.engine_id, g.request, g.step, max(u.end_ns) FILTER (r.phase = 'resumed') AS recomputed_ns,
        min(u.end_ns) AS first_ns
    FROM step_request r
    ASOF JOIN (SELECT * FROM gone WHERE resumed) g
        ON r.engine_id = g.engine_id AND r.request = g.request AND r.step >= g.step
    LEFT JOIN step_update u ON u.engine_id = r.engine_id AND u.step = r.step
    GROUP BY g.engine_id, g.request, g.step
), event AS (
    SELECT
        g.*,
        CASE WHEN g.resumed THEN 'preemption' ELSE 'eviction' END AS cause,
        CASE WHEN fetched_tokens > 0 THEN 'fetched' WHEN lost_tokens > 0 THEN 'recomputed' ELSE 'cached' END
            AS strategy,
        CASE WHEN g.resumed THEN coalesce(a.recomputed_ns, a.first_ns) ELSE q.first_token_ns END - g.time_ns
            AS overhead_ns,
        lost_tokens * c.ns_per_token + c.ns_per_token_context * (
            lost_tokens::DOUBLE * local_hit_tokens + lost_tokens::DOUBLE * (lost_tokens + 1) / 2
        ) AS recompute_ns,
        lost_tokens * (e.block_bytes / e.block_size_tokens) AS lost_bytes,
        t.bytes_per_s,
        e.model,
        e.block_size_tokens,
        s.running,
        s.free_blocks / nullif(s.free_blocks + s.used_blocks, 0) AS free_share
    FROM gone g
    LEFT JOIN again a USING (engine_id, request, step)
    LEFT JOIN request q ON q.request = g.request
    LEFT JOIN engine e ON e.engine_id = g.engine_id
    LEFT JOIN cost_model c ON c.engine_id = g.engine_id AND c.used
    LEFT JOIN transfer_rate t ON t.engine_id = g.engine_id AND t.direction = 'load'
    LEFT JOIN step_schedule s ON s.engine_id = g.engine_id AND s.step = g.step
    WHERE g.resumed OR g.lost_tokens > 0
), placed AS (
    SELECT *, 'lost_tokens' AS dimension, lost_tokens::DOUBLE AS amount FROM event
    UNION ALL
    SELECT *, 'sequence_tokens', queried_tokens FROM event
    UNION ALL
    SELECT *, 'running_requests', running FROM event
    UNION ALL
    SELECT *, 'free_share', free_share FROM event
), bucketed AS (
    SELECT
        *,
        CASE
            WHEN dimension = 'free_share' THEN least(floor(amount * 10), 9) / 10
            WHEN amount < 1 THEN 0
            ELSE 2 ** floor(log2(amount))
        END AS at_least,
        CASE
            WHEN dimension = 'free_share' THEN (least(floor(amount * 10), 9) + 1) / 10
            WHEN amount < 1 THEN 1
            ELSE 2 ** (floor(log2(amount)) + 1)
        END AS below
    FROM placed
    WHERE $dimension IS NULL OR dimension = $dimension
)
SELECT
    engine_id,
    model,
    block_size_tokens,
    dimension,
    at_least,
    below,
    cause,
    strategy,
    count(*) AS events,
    avg(lost_tokens) AS mean_lost_tokens,
    avg(overhead_ns) / 1e6 AS mean_overhead_ms,
    quantile_disc(overhead_ns, 0.5) / 1e6 AS p50_overhead_ms,
    quantile_disc(overhead_ns, 0.9) / 1e6 AS p90_overhead_ms,
    avg(recompute_ns) / 1e6 AS mean_recompute_ms,
    avg(lost_bytes / bytes_per_s) * 1e3 AS mean_fetch_ms,
    avg(lost_bytes) / ($assumed_gb_per_s * 1e6) AS mean_assumed_fetch_ms
FROM bucketed
GROUP BY engine_id, model, block_size_tokens, dimension, at_least, below, cause, strategy
ORDER BY engine_id, dimension, at_least, cause, strategy
