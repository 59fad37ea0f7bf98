-- How long did turns take under this policy and arrival rate?
--
-- One row. A turn is a request with a session tag; its duration runs from its arrival to its end, as the engine saw
-- both. Turns that were aborted, refused or failed, and those still running when the recording ended, are counted and
-- in no mean. Traces put side by side give the mean turn duration by policy and rate.
--
-- group: Requests and jobs
-- figure: 72-run policy study: mean turn duration by policy and arrival rate
-- needs: request
-- key: jobs, turns, mean_ms, p50_ms, p95_ms, max_ms
-- column: jobs derived | Jobs with a completed turn.
-- column: turns derived | Completed turns.
-- column: failed_turns derived | Turns that were aborted, refused or failed.
-- column: unfinished_turns derived | Turns that had not ended when the recording did.
-- column: mean_ms [ms] derived | Mean duration.
-- column: p50_ms [ms] derived | Median duration.
-- column: p95_ms [ms] derived | 95 of 100 turns were at most this long.
-- column: max_ms [ms] derived | Longest.
-- column: mean_queue_ms [ms] derived | Of the mean: from arrival to the first admission.
-- column: mean_ttft_ms [ms] derived | Of the mean: from arrival to the first token.
-- column: mean_output_tokens [tokens] derived | Mean output tokens of a turn.
-- setting: jobs_per_s

WITH counted AS (
    SELECT
        count(DISTINCT t.session) FILTER (completed) AS jobs,
        count(DISTINCT client_request) FILTER (completed) AS turns,
        count(DISTINCT client_request) FILTER (t.finished_ns IS NOT NULL AND NOT completed) AS failed_turns,
        count(DISTINCT client_request) FILTER (t.finished_ns IS NULL) AS unfinished_turns,
        avg(duration_ns) FILTER (completed) / 1e6 AS mean_ms,
        quantile_cont(duration_ns / 1e6, 0.5) FILTER (completed) AS p50_ms,
        quantile_cont(duration_ns / 1e6, 0.95) FILTER (completed) AS p95_ms,
        max(duration_ns) FILTER (completed) / 1e6 AS max_ms,
        avg(r.scheduled_ns - t.arrival_ns) FILTER (completed) / 1e6 AS mean_queue_ms,
        avg(r.first_token_ns - t.arrival_ns) FILTER (completed) / 1e6 AS mean_ttft_ms,
        avg(r.output_tokens) FILTER (completed) AS mean_output_tokens
    FROM job_turn t JOIN request r USING (request)
    HAVING count(*) > 0
)
SELECT
    c.*,
    s.policy, s.jobs_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM counted c, run_setting s
ORDER BY turns
