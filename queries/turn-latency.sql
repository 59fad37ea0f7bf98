-- How does a turn's latency change from a job's first turn to its last?
--
-- One row per turn number, over completed turns. The means queue_ms, prefill_ms and decode_ms add up to mean_ms where
-- every turn generated a token; a preemption's wait is in the part it fell into. Later turns have fewer jobs where jobs
-- differ in length: query turn-growth compares the same jobs.
--
-- group: Requests and jobs
-- figure: LMCache study: turn latency by turn index
-- needs: request
-- key: turn_number, turns, mean_cached_tokens, p50_ms, p95_ms, mean_queue_ms
-- column: turn_number derived | The turn's place in its job, counted from 1.
-- column: turns derived | Completed turns.
-- column: mean_prompt_tokens [tokens] derived | Mean prompt length.
-- column: mean_cached_tokens [tokens] derived | Of it, found at first admission, on the GPU or by a KV connector.
-- column: mean_ms [ms] derived | Mean latency, from arrival to end.
-- column: p50_ms [ms] derived | Median latency.
-- column: p95_ms [ms] derived | 95 of 100 turns were at most this long.
-- column: mean_queue_ms [ms] derived | Mean time from arrival to the first admission.
-- column: mean_prefill_ms [ms] derived | Mean time from there to the first token.
-- column: mean_decode_ms [ms] derived | Mean time from there to the end.
-- setting: jobs_per_s

WITH counted AS (
    SELECT
        t.turn_number,
        count(DISTINCT t.client_request) AS turns,
        avg(r.prompt_tokens) AS mean_prompt_tokens,
        avg(coalesce(r.local_cached_tokens, 0) + coalesce(r.external_cached_tokens, 0)) AS mean_cached_tokens,
        avg(t.duration_ns) / 1e6 AS mean_ms,
        quantile_cont(t.duration_ns / 1e6, 0.5) AS p50_ms,
        quantile_cont(t.duration_ns / 1e6, 0.95) AS p95_ms,
        avg(r.scheduled_ns - t.arrival_ns) / 1e6 AS mean_queue_ms,
        avg(r.first_token_ns - r.scheduled_ns) / 1e6 AS mean_prefill_ms,
        avg(t.finished_ns - r.first_token_ns) / 1e6 AS mean_decode_ms
    FROM job_turn t JOIN request r USING (request)
    WHERE t.completed
    GROUP BY t.turn_number
)
SELECT
    counted.*,
    s.policy, s.jobs_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM counted, run_setting s
ORDER BY turn_number
