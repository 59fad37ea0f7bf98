-- How do hit rate and time to first token differ between cold and warm prompts?
--
-- One row per class, over requests that generated. cold: no request admitted earlier in its engine had the same first
-- block, so no hit was possible. warm_hit: an earlier request had it, and a block was found. warm_miss: an earlier
-- request had it, but no block was found, because it was evicted, reset, or not stored yet. off: prefix caching was
-- off, or the request never looked up. unknown: the content of its first block was not recorded. A prompt shorter than
-- a block is cold. Two requests share a first block if vLLM gave it the same content hash (table `first_block`).
--
-- group: Prefix caching
-- figure: Prefix-cache study: hit rate and TTFT, cold against warm
-- needs: request, prefix_lookup
-- param: from_s DOUBLE = 0 | Leave out requests that arrived earlier, counted from the first arrival.
-- param: to_s DOUBLE = NULL | Leave out requests that arrived at this time or later.
-- param: skip_requests INTEGER = 0 | Leave out the first requests up to this number, e.g. the warm-up.
-- key: prompts, requests, mean_prompt_tokens, hit_rate, mean_ttft_ms, p95_ttft_ms
-- column: prompts derived | cold, warm_hit, warm_miss, off or unknown.
-- column: requests [requests] derived | Such requests.
-- column: mean_prompt_tokens [tokens] derived | Mean prompt length.
-- column: hit_rate [ratio] derived | Tokens found at first admission, by either cache, over prompt tokens.
-- column: mean_ttft_ms [ms] derived | Mean time from arrival to the first token.
-- column: p50_ttft_ms [ms] derived | Median of it.
-- column: p95_ttft_ms [ms] derived | 95 of 100 waited at most this long.
-- column: mean_queue_ms [ms] derived | Of the mean: from arrival to the first admission.
-- setting: requests_per_s

WITH counted AS (
    SELECT
        warmth AS prompts,
        count(*) AS requests,
        avg(prompt_tokens) AS mean_prompt_tokens,
        sum(hit_tokens) / nullif(sum(prompt_tokens), 0) AS hit_rate,
        avg(ttft_ns) / 1e6 AS mean_ttft_ms,
        quantile_cont(ttft_ns / 1e6, 0.5) AS p50_ttft_ms,
        quantile_cont(ttft_ns / 1e6, 0.95) AS p95_ttft_ms,
        avg(queue_ns) / 1e6 AS mean_queue_ms
    FROM prompt_class
    WHERE at_s >= $from_s AND ($to_s IS NULL OR at_s < $to_s) AND place > $skip_requests
    GROUP BY warmth
)
SELECT
    c.*,
    s.policy, s.requests_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM counted c, run_setting s
ORDER BY prompts
