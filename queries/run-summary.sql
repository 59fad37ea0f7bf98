-- What did the run do as a whole, and how fast?
--
-- One row for all engines together. The span runs from the first request's arrival (or first step) to the end of the
-- last step or request, so it includes idle time; warm-up is not separated. Where a flight recorder discarded the
-- beginning, the span runs from kept_from_ns, and requests that were under way then count in whole. Utilisation is that
-- of the GPU pools after each step, weighted by the step's duration. Hits are those of requests' first admissions.
-- Percentiles of requests are times that this share of them does not exceed.
--
-- group: Run
-- needs: step_schedule
-- key: requests, span_s, output_tokens_per_s, hit_share, max_used_share, preemptions
-- column: engines derived | Engines that scheduled a step.
-- column: requests [requests] recorded | Requests that reached an engine.
-- column: finished_requests [requests] recorded | Of them, those that ended in the recording.
-- column: prompt_tokens [tokens] recorded | Prompt tokens of all requests.
-- column: output_tokens [tokens] recorded | Output tokens of all requests.
-- column: span_s [s] derived | From the first arrival to the last end; NULL if the times of some engines count from 0.
-- column: output_tokens_per_s [tokens/s] derived | Output tokens over the span.
-- column: tokens_per_s [tokens/s] derived | Prompt and output tokens over the span.
-- column: requests_per_s [requests/s] derived | Requests that ended over the span.
-- column: steps [steps] recorded | Scheduler steps.
-- column: step_p50_ms [ms] derived | Median wall time of a step (interval_ns).
-- column: step_p95_ms [ms] derived | 95 of 100 steps took at most this long.
-- column: ttft_p50_ms [ms] derived | Median time from a request's arrival to its first token.
-- column: ttft_p95_ms [ms] derived | 95 of 100 requests took at most this long.
-- column: tpot_p50_ms [ms/token] derived | Median over requests of their mean time between output tokens.
-- column: tpot_p95_ms [ms/token] derived | 95 of 100 requests took at most this long.
-- column: hit_share [ratio] derived | Prompt tokens from the prefix cache or a connector over those looked up.
-- column: mean_used_share [ratio] derived | Mean share of the KV blocks in use.
-- column: max_used_share [ratio] derived | Largest share of an engine's KV blocks in use after a step.
-- column: preemptions recorded | Preemptions.
-- column: evictions [blocks] recorded | Blocks whose cached content was evicted; NULL without block events.
-- column: recomputed_tokens [tokens] recorded | Tokens computed again after preemptions.
-- column: dropped_records recorded | Records lost because recording had stopped; 0: none.
-- column: discarded_records recorded | Records that a flight recorder discarded (table discarded); 0: the run is whole.
-- column: kept_from_ns [ns] recorded | From here on the run is whole (UNIX time); NULL: from its beginning.
-- column: hosts recorded | Hosts, by their clocks; NULL if the trace does not tell.
-- column: clock_uncertainty_ms [ms] derived | How far the worst of their clocks may be off; NULL: not known.

WITH step_total AS (
    SELECT
        count(DISTINCT s.engine_id) AS engines,
        count(*) AS steps,
        min(start_ns) AS start_ns,
        max(coalesce(end_ns, scheduled_ns)) AS end_ns,
        -- Times of UnBoxKV-IO's CSVs count from 0, those of its logs from 1970: together they have no span.
        min(start_ns) < 946684800000000000 AND max(start_ns) >= 946684800000000000 AS mixed,
        quantile_disc(interval_ns, [0.5, 0.95]) AS interval_ns,
        sum(used_blocks * interval_ns::DOUBLE)
        / nullif(sum((used_blocks + free_blocks) * interval_ns::DOUBLE), 0) AS mean_used_share,
        max(used_blocks / nullif(used_blocks + free_blocks, 0)) AS max_used_share,
        sum(preempted_requests)::BIGINT AS preemptions,
        sum(resumed_tokens)::BIGINT AS recomputed_tokens
    FROM step s
), request_total AS (
    SELECT
        count(*) FILTER (engine_id IS NOT NULL) AS requests,
        count(finished_ns) AS finished,
        sum(prompt_tokens)::BIGINT AS prompt_tokens,
        sum(output_tokens)::BIGINT AS output_tokens,
        min(coalesce(arrival_ns, queued_ns)) AS start_ns,
        max(finished_ns) AS end_ns,
        quantile_disc(first_token_ns - arrival_ns, [0.5, 0.95]) AS ttft_ns,
        quantile_disc(
            CASE WHEN output_tokens > 1 THEN (finished_ns - first_token_ns) / (output_tokens - 1) END, [0.5, 0.95]
        ) AS tpot_ns
    FROM request
), lookup_total AS (
    SELECT sum(local_hit_tokens + coalesce(external_hit_tokens, 0)) / nullif(sum(queried_tokens), 0) AS hit_share
    FROM prefix_lookup
    WHERE admitted AND enabled AND NOT resumed
), block_total AS (
    SELECT CASE WHEN count(*) > 0 THEN count(*) FILTER (op = 'evict' AND pool = 0) END AS evictions FROM block_event
), missing AS (
    SELECT
        (SELECT coalesce(sum(dropped), 0) FROM stream)::BIGINT AS dropped_records,
        coalesce(sum(records) FILTER (event <> 'tiles'), 0)::BIGINT AS discarded_records,
        max(begins_ns) AS kept_from_ns
    FROM discarded
), host_total AS (
    SELECT
        nullif(count(DISTINCT host_clock), 0) AS hosts,
        CASE WHEN bool_and(uncertainty_ns IS NOT NULL) THEN max(uncertainty_ns) / 1e6 END AS clock_uncertainty_ms
    FROM process LEFT JOIN host_clock USING (host_clock)
    WHERE host_clock IS NOT NULL
), total AS (
    SELECT
        s.* EXCLUDE (start_ns, end_ns, mixed),
        r.* EXCLUDE (start_ns, end_ns),
        hit_share,
        evictions,
        m.*,
        hosts,
        clock_uncertainty_ms,
        CASE
            WHEN s.mixed THEN NULL
            ELSE (greatest(s.end_ns, r.end_ns) - greatest(least(s.start_ns, r.start_ns), m.kept_from_ns)) / 1e9
        END AS span_s
    FROM step_total s, request_total r, lookup_total, block_total, missing m, host_total
    WHERE s.steps > 0
)
SELECT
    engines,
    requests,
    finished AS finished_requests,
    prompt_tokens,
    output_tokens,
    span_s,
    output_tokens / nullif(span_s, 0) AS output_tokens_per_s,
    (prompt_tokens + output_tokens) / nullif(span_s, 0) AS tokens_per_s,
    finished / nullif(span_s, 0) AS requests_per_s,
    steps,
    interval_ns[1] / 1e6 AS step_p50_ms,
    interval_ns[2] / 1e6 AS step_p95_ms,
    ttft_ns[1] / 1e6 AS ttft_p50_ms,
    ttft_ns[2] / 1e6 AS ttft_p95_ms,
    tpot_ns[1] / 1e6 AS tpot_p50_ms,
    tpot_ns[2] / 1e6 AS tpot_p95_ms,
    hit_share,
    mean_used_share,
    max_used_share,
    preemptions,
    evictions,
    recomputed_tokens,
    dropped_records,
    discarded_records,
    kept_from_ns,
    hosts,
    clock_uncertainty_ms
FROM total
ORDER BY engines
