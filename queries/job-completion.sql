-- How long did each job take, and how much of that was turns, waiting, and tools?
--
-- One row per job (requests of one session tag), in order of arrival. The completion time runs from the arrival of its
-- first turn to the end of its last. It is made of the time with a turn in the engine and of gaps, when none was:
-- tools, users, or the client itself. All three are NULL for a job with a turn that had not ended when the recording
-- did.
--
-- group: Requests and jobs
-- figure: LMCache study: job completion time by rate
-- needs: request
-- key: session, turns, arrival_ns, jct_ms, queue_ms, cached_tokens, preemptions
-- worst: jct_ms
-- column: session recorded | The job.
-- column: turns derived | Its turns.
-- column: failed_turns derived | Of them, aborted, refused or failed.
-- column: unfinished_turns derived | Of them, not ended when the recording did.
-- column: arrival_ns [ns] recorded | Arrival of its first turn, UNIX time.
-- column: jct_ms [ms] derived | Job completion time.
-- column: turn_ms [ms] derived | Of it, with a turn in the engine.
-- column: gap_ms [ms] derived | Of it, between turns.
-- column: queue_ms [ms] derived | Sum over its turns, from arrival to the first admission.
-- column: prompt_tokens [tokens] derived | Sum over its turns.
-- column: cached_tokens [tokens] derived | Of them, found at first admissions, on the GPU or by a KV connector.
-- column: output_tokens [tokens] derived | Sum over its turns.
-- column: preemptions derived | Sum over its turns.
-- setting: jobs_per_s

WITH turns AS (
    SELECT
        t.*,
        r.scheduled_ns,
        r.prompt_tokens,
        coalesce(r.local_cached_tokens, 0) + coalesce(r.external_cached_tokens, 0) AS cached_tokens,
        r.output_tokens,
        r.preemptions,
        max(t.finished_ns) OVER (
            PARTITION BY t.session ORDER BY t.arrival_ns, t.request ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM job_turn t JOIN request r USING (request)
), jobs AS (
    SELECT
        session,
        count(DISTINCT client_request) AS turns,
        count(DISTINCT client_request) FILTER (finished_ns IS NOT NULL AND NOT completed) AS failed_turns,
        count(DISTINCT client_request) FILTER (finished_ns IS NULL) AS unfinished_turns,
        min(arrival_ns) AS arrival_ns,
        max(finished_ns) - min(arrival_ns) AS jct_ns,
        sum(greatest(arrival_ns - before_ns, 0)) AS gap_ns,
        sum(scheduled_ns - arrival_ns) AS queue_ns,
        sum(prompt_tokens)::BIGINT AS prompt_tokens,
        sum(cached_tokens)::BIGINT AS cached_tokens,
        sum(output_tokens)::BIGINT AS output_tokens,
        sum(preemptions)::BIGINT AS preemptions
    FROM turns
    GROUP BY session
)
SELECT
    session,
    turns,
    failed_turns,
    unfinished_turns,
    arrival_ns,
    CASE WHEN unfinished_turns = 0 THEN jct_ns / 1e6 END AS jct_ms,
    CASE WHEN unfinished_turns = 0 THEN (jct_ns - coalesce(gap_ns, 0)) / 1e6 END AS turn_ms,
    CASE WHEN unfinished_turns = 0 THEN coalesce(gap_ns, 0) / 1e6 END AS gap_ms,
    queue_ns / 1e6 AS queue_ms,
    prompt_tokens,
    cached_tokens,
    output_tokens,
    preemptions,
    s.policy, s.jobs_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM jobs, run_setting s
ORDER BY arrival_ns, session
