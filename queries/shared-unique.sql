-- How much faster do prompts with a shared prefix get their first token than unique ones of the same length?
--
-- One row per stretch of prompt lengths and kind of prompt, over requests that generated. shared: another request of
-- the engine, earlier or later, had the same first block (table `first_block`); unique: none had, or the prompt is
-- shorter than a block; unknown: the content of its first block was not recorded. With shared_sessions the tags decide
-- instead. A stretch is matched if it has both kinds: compare those. The first request of each shared prefix is cold,
-- and counted in cold_requests.
--
-- Differences of two rows are point estimates; intervals are a matter of comparing runs.
--
-- group: Prefix caching
-- figure: Prefix-cache study: shared against matched unique prompts
-- needs: request
-- param: bucket_tokens INTEGER = NULL | Width of a stretch of prompt lengths; NULL puts all lengths in one.
-- param: shared_sessions VARCHAR = NULL | Session tags of the shared requests, a pattern (`%` for any text).
-- param: from_s DOUBLE = 0 | Leave out requests that arrived earlier, counted from the first arrival.
-- param: to_s DOUBLE = NULL | Leave out requests that arrived at this time or later.
-- param: skip_requests INTEGER = 0 | Leave out the first requests up to this number, e.g. the warm-up.
-- key: at_least_tokens, prompts, requests, hit_rate, mean_ttft_ms, p95_ttft_ms
-- column: at_least_tokens [tokens] derived | Shortest prompt of the stretch.
-- column: prompts derived | shared, unique or unknown.
-- column: matched derived | The stretch has shared and unique prompts.
-- column: requests [requests] derived | Such requests.
-- column: cold_requests [requests] derived | Of them, with a first block that no request admitted before had.
-- column: mean_prompt_tokens [tokens] derived | Mean prompt length.
-- column: hit_rate [ratio] derived | Tokens found at first admission, by either cache, over prompt tokens.
-- column: mean_ttft_ms [ms] derived | Mean time from arrival to the first token.
-- column: p50_ttft_ms [ms] derived | Median of it.
-- column: p95_ttft_ms [ms] derived | 95 of 100 waited at most this long.
-- setting: requests_per_s

WITH classed AS (
    SELECT
        *,
        coalesce(prompt_tokens // $bucket_tokens * $bucket_tokens, 0) AS at_least_tokens,
        CASE
            WHEN $shared_sessions IS NULL THEN sharing
            WHEN session LIKE $shared_sessions THEN 'shared'
            ELSE 'unique'
        END AS prompts
    FROM prompt_class
    WHERE at_s >= $from_s AND ($to_s IS NULL OR at_s < $to_s) AND place > $skip_requests
), counted AS (
    SELECT
        at_least_tokens,
        prompts,
        count(*) AS requests,
        count(*) FILTER (earlier_requests = 0) AS cold_requests,
        avg(prompt_tokens) AS mean_prompt_tokens,
        sum(hit_tokens) / nullif(sum(prompt_tokens), 0) AS hit_rate,
        avg(ttft_ns) / 1e6 AS mean_ttft_ms,
        quantile_cont(ttft_ns / 1e6, 0.5) AS p50_ttft_ms,
        quantile_cont(ttft_ns / 1e6, 0.95) AS p95_ttft_ms
    FROM classed
    GROUP BY at_least_tokens, prompts
)
SELECT
    at_least_tokens,
    prompts,
    count(*) FILTER (prompts <> 'unknown') OVER (PARTITION BY at_least_tokens) = 2 AS matched,
    c.* EXCLUDE (at_least_tokens, prompts),
    s.policy, s.requests_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM counted c, run_setting s
ORDER BY at_least_tokens, prompts
