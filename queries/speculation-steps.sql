-- What did each step draft, accept and reject, and how long did it take?
--
-- One row per step that verified drafts. A step's decoding requests get one token each, and one more for each accepted token.
--
-- group: Scheduling
-- needs: draft, step_schedule, step_update
-- words: speculative, ngram, eagle, mtp, draft, accept
-- key: step, decode_requests, drafted_tokens, accepted_tokens, rejected_slots, own_ms
-- worst: own_ms
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: time_ns [ns] recorded | When its results were processed, UNIX time.
-- column: decode_requests [requests] recorded | Scheduled requests that generate.
-- column: drafts recorded | Of them, those with drafts.
-- column: drafted_tokens [tokens] recorded | Draft tokens, without those that a grammar had ruled out.
-- column: accepted_tokens [tokens] recorded | Of them, those that the model accepted.
-- column: rejected_tokens [tokens] derived | The others.
-- column: rejected_slots [tokens] derived | KV slots of tokens that were not accepted, in all KV cache groups of pages.
-- column: own_ms [ms] derived | Wall time that was its own (view step_time).

SELECT
    d.engine_id,
    d.step,
    min(d.time_ns) AS time_ns,
    any_value(s.decode_requests) AS decode_requests,
    count(*) AS drafts,
    sum(d.drafted_tokens)::BIGINT AS drafted_tokens,
    sum(d.accepted_tokens)::BIGINT AS accepted_tokens,
    sum(d.drafted_tokens - d.accepted_tokens)::BIGINT AS rejected_tokens,
    sum(d.rejected_slots)::BIGINT AS rejected_slots,
    any_value(t.own_ns) / 1e6 AS own_ms
FROM step_draft d
LEFT JOIN step s ON s.engine_id = d.engine_id AND s.step = d.step
LEFT JOIN step_time t ON t.engine_id = d.engine_id AND t.step = d.step
GROUP BY d.engine_id, d.step
ORDER BY d.engine_id, d.step
