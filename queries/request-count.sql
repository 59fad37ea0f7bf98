-- How do hit rate and time to first token change with the number of requests served?
--
-- One row per request count: the first n requests that generated, in order of arrival. n doubles from row to row and
-- ends with all of them. The marginal hit rate is that of the requests that the row adds to the previous one: a cache
-- that has warmed up shows there first.
--
-- group: Requests and jobs
-- figure: Prefix-cache study: request-count comparison
-- needs: request
-- param: skip_requests INTEGER = 0 | Leave out the first requests up to this number, e.g. the warm-up.
-- key: first_requests, span_s, hit_rate, marginal_hit_rate, mean_ttft_ms, p95_ttft_ms
-- column: first_requests [requests] derived | Requests in the row.
-- column: span_s [s] derived | From the first of their arrivals to the last of their ends.
-- column: mean_prompt_tokens [tokens] derived | Mean prompt length.
-- column: hit_rate [ratio] derived | Tokens found at first admission, by either cache, over prompt tokens.
-- column: marginal_hit_rate [ratio] derived | The same of the requests that the row before did not have.
-- column: mean_ttft_ms [ms] derived | Mean time from arrival to the first token.
-- column: p50_ttft_ms [ms] derived | Median of it.
-- column: p95_ttft_ms [ms] derived | 95 of 100 waited at most this long.
-- column: output_tokens_per_s [tokens/s] derived | Output tokens over span_s.
-- setting: requests_per_s

WITH arrived AS (
    SELECT
        *,
        coalesce(local_cached_tokens, 0) + coalesce(external_cached_tokens, 0) AS hit_tokens,
        row_number() OVER (ORDER BY arrival_ns, request) - $skip_requests AS place
    FROM request
    WHERE first_token_ns IS NOT NULL
), measured AS (
    FROM arrived WHERE place > 0
), size AS (
    SELECT DISTINCT least(2 ** k, n)::BIGINT AS first_requests
    FROM (SELECT count(*) AS n FROM measured), (SELECT unnest(range(63)) AS k)
    WHERE n > 0 AND 2 ** k < 2 * n
), counted AS (
    SELECT
        first_requests,
        (max(finished_ns) - min(arrival_ns)) / 1e9 AS span_s,
        avg(prompt_tokens) AS mean_prompt_tokens,
        sum(hit_tokens) AS hit_tokens,
        sum(prompt_tokens) AS prompt_tokens,
        avg(first_token_ns - arrival_ns) / 1e6 AS mean_ttft_ms,
        quantile_cont((first_token_ns - arrival_ns) / 1e6, 0.5) AS p50_ttft_ms,
        quantile_cont((first_token_ns - arrival_ns) / 1e6, 0.95) AS p95_ttft_ms,
        sum(output_tokens) AS output_tokens
    FROM size JOIN measured ON place <= first_requests
    GROUP BY first_requests
)
SELECT
    first_requests,
    span_s,
    mean_prompt_tokens,
    hit_tokens / nullif(prompt_tokens, 0) AS hit_rate,
    (hit_tokens - lag(hit_tokens, 1, 0) OVER grown) / nullif(prompt_tokens - lag(prompt_tokens, 1, 0) OVER grown, 0)
        AS marginal_hit_rate,
    mean_ttft_ms,
    p50_ttft_ms,
    p95_ttft_ms,
    output_tokens / nullif(span_s, 0) AS output_tokens_per_s,
    s.policy, s.requests_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM counted, run_setting s
WINDOW grown AS (ORDER BY first_requests)
ORDER BY first_requests
