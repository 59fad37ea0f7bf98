-- What did each step draft, accept and reject, and how long did it take?
--
-- One row per step that verified drafts. A step's decoding requests get one token each, and one more for each accepted token.
--
-- group: Scheduling
-- needs: draft, step_schedule, step_update
-- words: speculative, ngram, eagle, mtp, draft, accept
-- key: step, decode_requests, drafted_tokens, accepted_tokens, rejected_slots, interval_ms
-- worst: interval_ms
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: time_ns [ns] recorded | When its results were processed, UNIX time.
-- column: decode_requests [requests] recorded | Scheduled requests that generate.
-- column: drafts recorded | Of them, those with drafts.
-- column: drafted_tokens [tokens] recorded | Draft tokens, without those that a grammar had ruled out.
-- column: accepted_tokens [tokens] recorded | Of them, those that the model accepted.
-- column: rejected_tokens [tokens] derived | The others.
-- column: rejected_slots [tokens] derived | KV slots of tokens that were not accepted, in all KV cache groups of pages.
-- column: interval_ms [ms] derived | Wall time the step added.

WITH pages AS (
    SELECT engine_id, count(*) FILTER (kind IN ('full', 'window', 'chunk')) AS page_groups
    FROM kv_group GROUP BY engine_id
), counted AS (
    SELECT
        engine_id,
        step,
        min(time_ns) AS time_ns,
        count(*) AS drafts,
        sum(drafted_tokens - invalid_tokens)::BIGINT AS drafted_tokens,
        sum(accepted_tokens)::BIGINT AS accepted_tokens,
        sum(drafted_tokens)::BIGINT AS scheduled_tokens
    FROM draft
    GROUP BY engine_id, step
)
SELECT
    c.engine_id,
    c.step,
    c.time_ns,
    s.decode_requests,
    c.drafts,
    c.drafted_tokens,
    c.accepted_tokens,
    c.drafted_tokens - c.accepted_tokens AS rejected_tokens,
    (c.scheduled_tokens - c.accepted_tokens) * coalesce(g.page_groups, 1) AS rejected_slots,
    s.interval_ns / 1e6 AS interval_ms
FROM counted c
LEFT JOIN step s ON s.engine_id = c.engine_id AND s.step = c.step
LEFT JOIN pages g ON g.engine_id = c.engine_id
ORDER BY c.engine_id, c.step
