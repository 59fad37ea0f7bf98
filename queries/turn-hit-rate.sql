-- How much of its prompt did a job's first, second, ... turn find in the GPU's cache, and how much beyond it?
--
-- One row per turn number, over all jobs. Counted are the lookups at first admissions, whose hits were used; lookups of
-- requests that were refused or preempted are in queries prefix-hit-rate and recomputed-tokens. Rates are tokens over
-- tokens, so long prompts weigh more; NULL where prefix caching was off.
--
-- group: Prefix caching
-- figure: 72-run policy study: per-turn hit rate, local and external
-- needs: request, prefix_lookup
-- key: turn_number, turns, queried_tokens, local_hit_rate, hit_rate, turns_without_hit
-- column: turn_number derived | The turn's place in its job, counted from 1.
-- column: turns derived | Admitted turns.
-- column: queried_tokens [tokens] derived | Tokens looked up.
-- column: local_hit_tokens [tokens] derived | Of them, found in the GPU prefix cache.
-- column: external_hit_tokens [tokens] derived | Of them, supplied by a KV connector.
-- column: local_hit_rate [ratio] derived | local_hit_tokens over queried_tokens.
-- column: external_hit_rate [ratio] derived | external_hit_tokens over queried_tokens.
-- column: hit_rate [ratio] derived | Both.
-- column: turns_without_hit derived | Turns that found nothing.
-- setting: jobs_per_s

WITH counted AS (
    SELECT
        t.turn_number,
        count(DISTINCT client_request) AS turns,
        sum(l.queried_tokens)::BIGINT AS queried_tokens,
        sum(l.local_hit_tokens)::BIGINT AS local_hit_tokens,
        sum(coalesce(l.external_hit_tokens, 0))::BIGINT AS external_hit_tokens,
        CASE WHEN bool_or(l.enabled) THEN nullif(sum(l.queried_tokens), 0) END AS counted_tokens,
        count(*) FILTER (l.local_hit_tokens + coalesce(l.external_hit_tokens, 0) = 0) AS turns_without_hit
    FROM job_turn t JOIN prefix_lookup l USING (request)
    WHERE l.admitted AND NOT l.resumed
    GROUP BY t.turn_number
)
SELECT
    turn_number,
    turns,
    queried_tokens,
    local_hit_tokens,
    external_hit_tokens,
    local_hit_tokens / counted_tokens AS local_hit_rate,
    external_hit_tokens / counted_tokens AS external_hit_rate,
    (local_hit_tokens + external_hit_tokens) / counted_tokens AS hit_rate,
    turns_without_hit,
    s.policy, s.jobs_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM counted, run_setting s
ORDER BY turn_number
