-- A draft that a step verified: a request's drafted tokens, those accepted, and the KV slots that were written for them.
--
-- Each drafted token has a KV slot in every KV cache group of pages in the step that verifies it, also one that a grammar had
-- ruled out. The slots of tokens that are not accepted are written again by the request's next step.
--
-- needs: draft, kv_group
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: time_ns [ns] recorded | When the step's results were processed.
-- column: request recorded | The request.
-- column: drafted_tokens [tokens] recorded | Draft tokens, without those that a grammar had ruled out.
-- column: accepted_tokens [tokens] recorded | Of them, those that the model accepted.
-- column: drafted_slots [tokens] derived | KV slots of the drafted tokens, in all KV cache groups of pages.
-- column: rejected_slots [tokens] derived | Of them, those of tokens that were not accepted.

WITH pages AS (
    SELECT engine_id, count(*) FILTER (kind IN ('full', 'window', 'chunk')) AS page_groups
    FROM kv_group GROUP BY engine_id
)
SELECT
    d.engine_id,
    d.step,
    d.time_ns,
    d.request,
    d.drafted_tokens - d.invalid_tokens AS drafted_tokens,
    d.accepted_tokens,
    d.drafted_tokens * coalesce(p.page_groups, 1) AS drafted_slots,
    (d.drafted_tokens - d.accepted_tokens) * coalesce(p.page_groups, 1) AS rejected_slots
FROM draft d
LEFT JOIN pages p ON p.engine_id = d.engine_id
