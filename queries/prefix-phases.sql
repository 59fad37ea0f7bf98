-- How did the phases of an experiment go, in the order in which they were run?
--
-- One row per phase, in order of its first request. A phase's name is its requests' session tag without the part that
-- cut_pattern matches, so `shared-3` and `shared-12` are phase `shared`; requests without a tag form a phase without a
-- name. The first skip_requests of each phase are its warm-up and left out. To see whether the order matters, record
-- the same phases in both orders and put the answers side by side: phase_order tells them apart.
--
-- group: Prefix caching
-- figure: Prefix-cache study: phase order and warm-up
-- needs: request
-- param: skip_requests INTEGER = 0 | Leave out each phase's first requests up to this number.
-- param: cut_pattern VARCHAR = [-_/:. ]*[0-9]+$ | Regular expression of what session tags of one phase differ in.
-- key: phase, requests, mean_prompt_tokens, hit_rate, mean_ttft_ms, p95_ttft_ms
-- column: phase_order derived | The phase's place, counted from 1.
-- column: phase derived | Its name.
-- column: start_s [s] derived | From the trace's first arrival to the phase's first.
-- column: end_s [s] derived | From there to the end of the last of its requests.
-- column: overlaps derived | It began before an earlier phase had ended.
-- column: requests [requests] derived | Its measured requests: those that generated, without the warm-up.
-- column: skipped_requests [requests] derived | Its warm-up.
-- column: mean_prompt_tokens [tokens] derived | Mean prompt length of the measured requests.
-- column: hit_rate [ratio] derived | Tokens they found at first admission, by either cache, over prompt tokens.
-- column: mean_ttft_ms [ms] derived | Mean time from arrival to the first token.
-- column: p50_ttft_ms [ms] derived | Median of it.
-- column: p95_ttft_ms [ms] derived | 95 of 100 waited at most this long.
-- setting: requests_per_s

WITH named AS (
    SELECT
        *,
        regexp_replace(session, $cut_pattern, '') AS phase,
        min(arrival_ns) OVER () AS zero_ns
    FROM request
    WHERE arrival_ns IS NOT NULL
), arrived AS (
    SELECT *, row_number() OVER (PARTITION BY phase ORDER BY arrival_ns, request) <= $skip_requests AS skipped
    FROM named
), served AS (
    SELECT
        *,
        NOT skipped AND first_token_ns IS NOT NULL AS counts,
        coalesce(local_cached_tokens, 0) + coalesce(external_cached_tokens, 0) AS cached_tokens
    FROM arrived
), counted AS (
    SELECT
        phase,
        min(arrival_ns - zero_ns) / 1e9 AS start_s,
        max(finished_ns - zero_ns) / 1e9 AS end_s,
        count(*) FILTER (counts) AS requests,
        count(*) FILTER (skipped) AS skipped_requests,
        avg(prompt_tokens) FILTER (counts) AS mean_prompt_tokens,
        sum(cached_tokens) FILTER (counts) / nullif(sum(prompt_tokens) FILTER (counts), 0) AS hit_rate,
        avg(first_token_ns - arrival_ns) FILTER (NOT skipped) / 1e6 AS mean_ttft_ms,
        quantile_cont((first_token_ns - arrival_ns) / 1e6, 0.5) FILTER (NOT skipped) AS p50_ttft_ms,
        quantile_cont((first_token_ns - arrival_ns) / 1e6, 0.95) FILTER (NOT skipped) AS p95_ttft_ms
    FROM served
    GROUP BY phase
), ordered AS (
    SELECT
        *,
        max(end_s) OVER (ORDER BY start_s, phase ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_end_s
    FROM counted
)
SELECT
    row_number() OVER (ORDER BY start_s, phase) AS phase_order,
    phase,
    start_s,
    end_s,
    coalesce(start_s < before_end_s, false) AS "overlaps",
    ordered.requests,
    skipped_requests,
    mean_prompt_tokens,
    hit_rate,
    mean_ttft_ms,
    p50_ttft_ms,
    p95_ttft_ms,
    s.policy, s.requests_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM ordered, run_setting s
ORDER BY phase_order
