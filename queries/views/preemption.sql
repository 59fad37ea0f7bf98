-- A preemption, and what became of the request.
--
-- It is the event joined with the next one of the request's life.
--
-- needs: request_event
-- column: engine_id recorded | The engine.
-- column: step recorded | The step that preempted it.
-- column: time_ns [ns] recorded | When.
-- column: request recorded | The request.
-- column: output_tokens [tokens] recorded | Output tokens it had by then.
-- column: lost_tokens [tokens] recorded | Tokens whose KV was given up.
-- column: lost_blocks [blocks] recorded | Blocks its block table held.
-- column: outcome derived | resumed; finished: it ended while waiting to resume; waiting: still was when the recording
--     ended.
-- column: resume_step recorded | The step that admitted it again; NULL if none did.
-- column: resume_ns [ns] recorded | When it was admitted again.
-- column: cached_tokens [tokens] recorded | Tokens then found in the GPU prefix cache.
-- column: fetched_tokens [tokens] recorded | Tokens then supplied by a KV connector.

WITH turn AS (
    SELECT
        *,
        lead(op) OVER life AS next_op,
        lead(time_ns) OVER life AS next_ns,
        lead(step) OVER life AS next_step,
        lead(local_cached_tokens) OVER life AS next_local,
        lead(external_cached_tokens) OVER life AS next_external
    FROM request_event
    WHERE op IN ('preempt', 'resume', 'finish')
    WINDOW life AS (PARTITION BY engine_id, request ORDER BY time_ns, rowid)
), ended AS (
    SELECT *, coalesce(next_op = 'resume', false) AS resumed FROM turn WHERE op = 'preempt'
)
SELECT
    engine_id,
    step,
    time_ns,
    request,
    output_tokens,
    computed_tokens AS lost_tokens,
    blocks AS lost_blocks,
    CASE WHEN resumed THEN 'resumed' WHEN next_op IS NOT NULL THEN 'finished' ELSE 'waiting' END AS outcome,
    CASE WHEN resumed THEN next_step END AS resume_step,
    CASE WHEN resumed THEN next_ns END AS resume_ns,
    CASE WHEN resumed THEN next_local END AS cached_tokens,
    CASE WHEN resumed THEN next_external END AS fetched_tokens
FROM ended
