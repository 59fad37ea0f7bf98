-- How does the prefix cache's hit rate stand against the KV budget: what did the workload need, what was evicted?
--
-- One row: a point of the pressure curve; traces of the same workload with other budgets give the other points. Hits
-- are those of first admissions. Distinct tokens are the content that the GPU's cache was ever given; each block counts
-- once per hash and engine. Their ratio to the budget says how much of the content could have stayed. Avoidable tokens
-- are those that an earlier request had computed and that vLLM would have reused, had no block been lost (query
-- prefix-miss).
--
-- group: Prefix caching
-- figure: Prefix-cache study: hit rate against KV budget (cache pressure)
-- needs: prefix_lookup
-- key: budget_tokens, hit_rate, pressure, evicted_blocks, avoidable_share, mean_ttft_ms
-- column: budget_tokens [tokens] derived | Tokens that fit into the GPU's blocks; NULL if not recorded.
-- column: host_bytes [bytes] derived | KV that the connector's tier in host memory holds, of one rank's.
-- column: requests [requests] derived | Requests admitted.
-- column: queried_tokens [tokens] derived | Their tokens looked up.
-- column: local_hit_rate [ratio] derived | Share of them found in the GPU's cache.
-- column: external_hit_rate [ratio] derived | Share of them supplied by a KV connector.
-- column: hit_rate [ratio] derived | Both; NULL with prefix caching off.
-- column: distinct_tokens [tokens] derived | Tokens of different content that the GPU's cache was given; NULL without
--     block events.
-- column: pressure [ratio] derived | distinct_tokens over budget_tokens.
-- column: evicted_blocks [blocks] derived | Blocks evicted from the GPU's cache.
-- column: evictions_per_request [blocks] derived | evicted_blocks over requests.
-- column: avoidable_tokens [tokens] derived | Tokens that had to be computed again because they were lost; NULL without
--     recorded hashes.
-- column: avoidable_share [ratio] derived | avoidable_tokens over queried_tokens: the hit rate that a larger budget
--     could add.
-- column: preemptions derived | Preemptions, of all requests.
-- column: mean_ttft_ms [ms] derived | Mean time from arrival to the first token.
-- setting: requests_per_s

WITH looked_up AS (
    SELECT
        count(DISTINCT request) AS requests,
        sum(queried_tokens)::BIGINT AS queried_tokens,
        CASE WHEN bool_or(enabled) THEN nullif(sum(queried_tokens), 0) END AS counted_tokens,
        sum(local_hit_tokens) AS local_tokens,
        sum(coalesce(external_hit_tokens, 0)) AS external_tokens
    FROM prefix_lookup
    WHERE admitted AND NOT resumed
), stored AS (
    SELECT
        c.engine_id,
        count(distinct(c.kv_group, c.block_hash)) * any_value(e.block_size_tokens)
        // greatest(coalesce(any_value(e.kv_groups), 1), 1) AS tokens
    FROM block_event c LEFT JOIN engine e USING (engine_id)
    WHERE c.op = 'cache' AND c.pool = 0
    GROUP BY c.engine_id
), evicted AS (
    SELECT count(*) AS blocks FROM block_event WHERE op = 'evict' AND pool = 0
), lost AS (
    SELECT sum(avoidable_tokens)::BIGINT AS tokens FROM prefix_miss WHERE NOT resumed AND verdict <> 'unknown'
), served AS (
    SELECT sum(preemptions)::BIGINT AS preemptions, avg(first_token_ns - arrival_ns) / 1e6 AS mean_ttft_ms FROM request
)
SELECT
    s.capacity_tokens AS budget_tokens,
    s.host_bytes,
    l.requests,
    l.queried_tokens,
    l.local_tokens / l.counted_tokens AS local_hit_rate,
    l.external_tokens / l.counted_tokens AS external_hit_rate,
    (l.local_tokens + l.external_tokens) / l.counted_tokens AS hit_rate,
    d.tokens AS distinct_tokens,
    d.tokens / s.capacity_tokens AS pressure,
    e.blocks AS evicted_blocks,
    e.blocks / l.requests AS evictions_per_request,
    lost.tokens AS avoidable_tokens,
    lost.tokens / nullif(l.queried_tokens, 0) AS avoidable_share,
    v.preemptions,
    v.mean_ttft_ms,
    s.policy, s.requests_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM looked_up l, (SELECT sum(tokens)::BIGINT AS tokens FROM stored) d, evicted e, lost, served v, run_setting s
WHERE l.requests > 0
ORDER BY l.requests
