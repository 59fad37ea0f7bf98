-- What did requests cost whose clients left?
--
-- One row per request that ended in an abort, in order of its end. Its blocks stay in the prefix cache, so a client that
-- asks again may find its KV.
--
-- group: Requests and jobs
-- needs: request
-- words: disconnect, disconnects, waste, abort, aborts, timeout, tenant
-- key: request, session, finished_ns, queue_ms, batch_ms, computed_tokens, output_tokens
-- worst: computed_tokens
-- column: engine_id recorded | The engine.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: tenant recorded | Tenant, if the client told one.
-- column: finished_ns [ns] recorded | When the engine ended it, UNIX time.
-- column: queue_ms [ms] derived | From the queue to the first admission, or to the end without one.
-- column: batch_ms [ms] derived | From the first admission to the end; NULL if it was never admitted.
-- column: steps [steps] derived | Steps that computed for it.
-- column: computed_tokens [tokens] derived | Tokens that they computed, prompt and output.
-- column: output_tokens [tokens] recorded | Tokens it generated.

WITH spent AS (
    SELECT request, count(*) AS steps, sum(scheduled_tokens)::BIGINT AS tokens FROM step_request GROUP BY request
)
SELECT
    r.engine_id,
    r.request,
    r.external_id,
    r.session,
    r.turn,
    r.tenant,
    r.finished_ns,
    (coalesce(r.scheduled_ns, r.finished_ns) - r.queued_ns) / 1e6 AS queue_ms,
    (r.finished_ns - r.scheduled_ns) / 1e6 AS batch_ms,
    coalesce(s.steps, 0) AS steps,
    coalesce(s.tokens, 0) AS computed_tokens,
    coalesce(r.output_tokens, 0) AS output_tokens
FROM request r LEFT JOIN spent s ON s.request = r.request
WHERE r.finish_reason = 'abort'
ORDER BY r.engine_id, r.finished_ns, r.request
