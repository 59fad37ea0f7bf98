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

SELECT
    d.engine_id,
    d.request,
    any_value(r.external_id) AS external_id,
    any_value(r.session) AS session,
    any_value(r.turn) AS turn,
    count(*) AS drafts,
    sum(d.drafted_tokens)::BIGINT AS drafted_tokens,
    sum(d.accepted_tokens)::BIGINT AS accepted_tokens,
    sum(d.drafted_tokens - d.accepted_tokens)::BIGINT AS rejected_tokens,
    sum(d.accepted_tokens) / nullif(sum(d.drafted_tokens), 0) AS acceptance,
    sum(d.accepted_tokens) / count(*) AS accepted_per_draft,
    sum(d.drafted_slots)::BIGINT AS drafted_slots,
    sum(d.rejected_slots)::BIGINT AS rejected_slots
FROM step_draft d
LEFT JOIN request r ON r.request = d.request
GROUP BY d.engine_id, d.request
ORDER BY d.engine_id, d.request
