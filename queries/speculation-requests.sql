-- How many drafted tokens did the model accept of each request, and how many KV slots were written for the others?
--
-- One row per request with drafts. Each drafted token has a KV slot in every KV cache group of pages in the step that verifies
-- it. The slots of rejected tokens are written again by the request's next step.
--
-- group: Requests and jobs
-- needs: draft
-- words: speculative, ngram, eagle, mtp, draft, accept
-- key: request, session, drafted_tokens, accepted_tokens, acceptance, accepted_per_draft, rejected_slots
-- column: engine_id recorded | The engine.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Its session tag.
-- column: turn recorded | Its turn tag.
-- column: drafts recorded | Steps that verified drafts of it.
-- column: drafted_tokens [tokens] recorded | Draft tokens, without those that a grammar had ruled out.
-- column: accepted_tokens [tokens] recorded | Of them, those that the model accepted.
-- column: rejected_tokens [tokens] derived | The others.
-- column: acceptance [ratio] derived | accepted_tokens over drafted_tokens.
-- column: accepted_per_draft [tokens] derived | accepted_tokens over drafts.
-- column: drafted_slots [tokens] derived | KV slots of the drafted tokens, in all KV cache groups of pages.
-- column: rejected_slots [tokens] derived | Of them, those of tokens that were not accepted.

WITH pages AS (
    SELECT engine_id, count(*) FILTER (kind IN ('full', 'window', 'chunk')) AS page_groups
    FROM kv_group GROUP BY engine_id
), counted AS (
    SELECT
        engine_id,
        request,
        count(*) AS drafts,
        sum(drafted_tokens - invalid_tokens)::BIGINT AS drafted_tokens,
        sum(accepted_tokens)::BIGINT AS accepted_tokens,
        sum(drafted_tokens)::BIGINT AS scheduled_tokens
    FROM draft
    GROUP BY engine_id, request
)
SELECT
    c.engine_id,
    c.request,
    r.external_id,
    r.session,
    r.turn,
    c.drafts,
    c.drafted_tokens,
    c.accepted_tokens,
    c.drafted_tokens - c.accepted_tokens AS rejected_tokens,
    c.accepted_tokens / nullif(c.drafted_tokens, 0) AS acceptance,
    c.accepted_tokens / c.drafts AS accepted_per_draft,
    c.scheduled_tokens * coalesce(g.page_groups, 1) AS drafted_slots,
    (c.scheduled_tokens - c.accepted_tokens) * coalesce(g.page_groups, 1) AS rejected_slots
FROM counted c
LEFT JOIN request r ON r.request = c.request
LEFT JOIN pages g ON g.engine_id = c.engine_id
ORDER BY c.engine_id, c.request
