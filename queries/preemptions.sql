-- Which requests were preempted, what was thrown away, and what did it cost to get it back?
--
-- One row per preemption, in order. vLLM drops a preempted request's KV and computes it again; the blocks it gives back
-- stay findable by hash until they are evicted, so some of its tokens may be cached when it resumes.
--
-- group: Preemption and eviction
-- needs: request_event
-- words: preempted
-- key: time_ns, request, discarded_tokens, outcome, wait_ms, recomputed_tokens
-- worst: wait_ms
-- column: engine_id recorded | The engine.
-- column: step recorded | The step that preempted it.
-- column: time_ns [ns] recorded | When, UNIX time.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: output_tokens [tokens] recorded | Output tokens it had by then.
-- column: discarded_tokens [tokens] recorded | Tokens whose KV was thrown away.
-- column: discarded_blocks [blocks] recorded | Blocks its block table held.
-- column: outcome derived | resumed; finished: it ended while waiting to resume; waiting: still was when the recording
--     ended.
-- column: resume_step recorded | The step that admitted it again.
-- column: wait_ms [ms] derived | Time until then.
-- column: local_cached_tokens [tokens] recorded | Tokens found in the GPU prefix cache when it resumed.
-- column: external_cached_tokens [tokens] recorded | Tokens a KV connector supplied when it resumed.
-- column: recomputed_tokens [tokens] derived | Tokens scheduled in phase `resumed` until it was preempted again or
--     ended; NULL if it did not resume or step_request was not recorded.

WITH recomputed AS (
    SELECT s.engine_id, s.request, p.resume_step, sum(s.scheduled_tokens)::BIGINT AS tokens
    FROM (SELECT * FROM step_request WHERE phase = 'resumed') s
    ASOF JOIN (SELECT * FROM preemption WHERE outcome = 'resumed') p
        ON s.engine_id = p.engine_id AND s.request = p.request AND s.step >= p.resume_step
    GROUP BY s.engine_id, s.request, p.resume_step
)
SELECT
    p.engine_id,
    p.step,
    p.time_ns,
    p.request,
    r.external_id,
    p.output_tokens,
    p.lost_tokens AS discarded_tokens,
    p.lost_blocks AS discarded_blocks,
    p.outcome,
    p.resume_step,
    (p.resume_ns - p.time_ns) / 1e6 AS wait_ms,
    p.cached_tokens AS local_cached_tokens,
    p.fetched_tokens AS external_cached_tokens,
    CASE WHEN p.outcome = 'resumed' AND EXISTS (FROM step_request) THEN coalesce(c.tokens, 0) END AS recomputed_tokens
FROM preemption p
LEFT JOIN recomputed c
    ON c.engine_id = p.engine_id AND c.request = p.request AND c.resume_step = p.resume_step
LEFT JOIN request r ON r.request = p.request
ORDER BY p.engine_id, p.time_ns, p.request
