-- For which reasons did prefix lookups miss, and what did each reason cost?
--
-- The rows of query prefix-miss by verdict, first admissions and those after a preemption apart. Prices are those of
-- query cost-model; they are NULL where the run gave no usable fit.
--
-- group: Prefix caching
-- needs: prefix_miss
-- words: hit, rate, why, miss
-- key: verdict, lookups, hit_tokens, recomputed_tokens, avoidable_tokens, avoidable_ms
-- column: engine_id recorded | The engine.
-- column: resumed recorded | Lookups after a preemption.
-- column: verdict derived | Why the first block that had to be computed was not found.
-- column: requests [requests] derived | Requests with such a lookup.
-- column: lookups derived | Such lookups.
-- column: queried_tokens [tokens] derived | Tokens of those requests.
-- column: hit_tokens [tokens] derived | Of them, found in the GPU prefix cache or supplied by a KV connector.
-- column: known_tokens [tokens] derived | Of them, those at the beginning of a request that an earlier one had too, in
--     whole blocks; with part_of_block at least so many.
-- column: recomputed_tokens [tokens] derived | Tokens that had to be computed.
-- column: avoidable_tokens [tokens] derived | Of them, those that a cache which lost nothing would have supplied.
-- column: recompute_ms [ms] derived | Price of recomputed_tokens.
-- column: avoidable_ms [ms] derived | Price of avoidable_tokens.
-- column: avoidable_share [ratio] derived | Share of the engine's avoidable tokens.

WITH counted AS (
    SELECT
        engine_id,
        resumed,
        verdict,
        count(DISTINCT request) AS requests,
        count(*) AS lookups,
        sum(queried_tokens)::BIGINT AS queried_tokens,
        sum(local_hit_tokens + coalesce(external_hit_tokens, 0))::BIGINT AS hit_tokens,
        sum(known_tokens)::BIGINT AS known_tokens,
        sum(recomputed_tokens)::BIGINT AS recomputed_tokens,
        sum(avoidable_tokens)::BIGINT AS avoidable_tokens,
        sum(recompute_ns) / 1e6 AS recompute_ms,
        sum(avoidable_ns) / 1e6 AS avoidable_ms
    FROM prefix_miss
    GROUP BY engine_id, resumed, verdict
)
SELECT *, avoidable_tokens / nullif(sum(avoidable_tokens) OVER (PARTITION BY engine_id), 0) AS avoidable_share
FROM counted
ORDER BY engine_id, resumed, recomputed_tokens DESC, verdict
