-- How many drafted tokens did the model accept, and what acceptance would speculation have to have to pay?
--
-- One row per engine that verified drafts. A draft is one request's tokens of one step. The cost is over the steps that only
-- decode: how much longer they took with drafts than without. What a step takes without drafts is the median of the run's own
-- steps without any, of as many decoding requests (basis measured); where it has fewer than five, the step's time less the price
-- of its draft tokens by the fit of query cost-model (basis fitted), which leaves a draft model's own time out. A token that
-- is accepted saves what a token costs in those steps. `break_even_acceptance` is the share of drafted tokens at which both
-- are equal.
--
-- group: Scheduling
-- needs: draft, step_schedule, step_update
-- words: speculative, ngram, eagle, mtp, draft, accept
-- key: drafted_tokens, acceptance, break_even_acceptance, accepted_per_draft, rejected_slots, saved_ms
-- column: engine_id recorded | The engine.
-- column: drafts recorded | Drafts that were verified.
-- column: drafted_tokens [tokens] recorded | Their tokens, without those that a grammar had ruled out.
-- column: accepted_tokens [tokens] recorded | Of them, those that the model accepted.
-- column: rejected_tokens [tokens] derived | The others: computed in vain.
-- column: acceptance [ratio] derived | accepted_tokens over drafted_tokens.
-- column: accepted_per_draft [tokens] derived | accepted_tokens over drafts: what a request gained in a step.
-- column: rejected_slots [tokens] derived | KV slots of tokens that were not accepted, in all KV cache groups of pages.
-- column: decode_steps [steps] derived | Steps that only decode, with drafts.
-- column: mean_step_ms [ms] derived | Their own time (view step_time), mean.
-- column: basis derived | measured or fitted: where the time without drafts is from; NULL without either.
-- column: plain_step_ms [ms] derived | What they would have taken without drafts (mean).
-- column: plain_token_ms [ms] derived | That over their decoding requests: what an accepted token saves.
-- column: break_even_acceptance [ratio] derived | The acceptance in those steps at which speculation costs what it saves; above
--     1, it cannot pay.
-- column: saved_ms [ms] derived | What the accepted tokens of those steps saved less what the drafts cost; below 0, it cost more.

WITH drafted AS (
    SELECT
        engine_id,
        step,
        count(*) AS drafts,
        sum(drafted_tokens) AS drafted_tokens,
        sum(accepted_tokens) AS accepted_tokens,
        sum(rejected_slots) AS rejected_slots
    FROM step_draft GROUP BY engine_id, step
), decoding AS (
    SELECT s.engine_id, s.step, s.decode_requests, t.own_ns, d.drafts, d.drafted_tokens, d.accepted_tokens
    FROM step s
    JOIN step_time t USING (engine_id, step)
    LEFT JOIN drafted d ON d.engine_id = s.engine_id AND d.step = s.step
    WHERE t.own_ns IS NOT NULL AND s.decode_requests > 0 AND s.scheduled_tokens = s.decode_tokens
), plain AS (
    SELECT engine_id, decode_requests, median(own_ns) AS own_ns
    FROM decoding WHERE drafts IS NULL GROUP BY engine_id, decode_requests HAVING count(*) >= 5
), compared AS (
    SELECT
        d.*, p.own_ns AS measured_ns,
        coalesce(
            p.own_ns,
            CASE
                WHEN d.own_ns > d.drafted_tokens * c.ns_per_token
                    THEN d.own_ns - d.drafted_tokens * c.ns_per_token
            END
        ) AS plain_ns
    FROM decoding d
    LEFT JOIN plain p ON p.engine_id = d.engine_id AND p.decode_requests = d.decode_requests
    LEFT JOIN cost_model c ON c.engine_id = d.engine_id AND c.composition = 'decode_only'
    WHERE d.drafts IS NOT NULL
), cost AS (
    SELECT
        engine_id,
        count(*) AS decode_steps,
        avg(own_ns) AS own_ns,
        CASE
            WHEN count(plain_ns) < count(*) THEN NULL WHEN count(measured_ns) = count(*) THEN 'measured' ELSE 'fitted'
        END AS basis,
        avg(plain_ns) AS plain_ns,
        sum(plain_ns) / sum(decode_requests) AS token_ns,
        sum(own_ns - plain_ns) AS extra_ns,
        sum(drafted_tokens) AS drafted_tokens,
        sum(accepted_tokens) AS accepted_tokens
    FROM compared GROUP BY engine_id
), counted AS (
    SELECT
        engine_id, sum(drafts)::BIGINT AS drafts, sum(drafted_tokens)::BIGINT AS drafted_tokens,
        sum(accepted_tokens)::BIGINT AS accepted_tokens, sum(rejected_slots)::BIGINT AS rejected_slots
    FROM drafted GROUP BY engine_id
)
SELECT
    n.engine_id,
    n.drafts,
    n.drafted_tokens,
    n.accepted_tokens,
    n.drafted_tokens - n.accepted_tokens AS rejected_tokens,
    n.accepted_tokens / nullif(n.drafted_tokens, 0) AS acceptance,
    n.accepted_tokens / n.drafts AS accepted_per_draft,
    n.rejected_slots,
    coalesce(c.decode_steps, 0) AS decode_steps,
    c.own_ns / 1e6 AS mean_step_ms,
    c.basis,
    CASE WHEN c.basis IS NOT NULL THEN c.plain_ns / 1e6 END AS plain_step_ms,
    CASE WHEN c.basis IS NOT NULL THEN c.token_ns / 1e6 END AS plain_token_ms,
    CASE WHEN c.basis IS NOT NULL THEN c.extra_ns / nullif(c.token_ns * c.drafted_tokens, 0) END
        AS break_even_acceptance,
    CASE WHEN c.basis IS NOT NULL THEN (c.accepted_tokens * c.token_ns - c.extra_ns) / 1e6 END AS saved_ms
FROM counted n
LEFT JOIN cost c ON c.engine_id = n.engine_id
ORDER BY n.engine_id
