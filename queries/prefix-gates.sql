-- Which KV cache group and rule kept tokens from being prefix hits, and what did that cost?
--
-- The tokens that admitted lookups did not find, divided by the rule of vLLM's lookup that cut them off. Without resumed
-- lookups, `lost_tokens` adds up to vLLM's queries minus its hits. `known_tokens` are those that a cache which lost
-- nothing would have had; the others were new. A hybrid model's groups are asked one after the other, each up to the
-- length that those before it agreed on: a group is charged with what it took off that length. docs/misses.md explains
-- the rules.
--
-- group: Prefix caching
-- needs: prefix_loss
-- words: hit, rate, why, miss, hybrid, sliding window, mamba, eagle, mtp, alignment
-- key: rule, kv_group, kind, lookups, lost_tokens, known_tokens, tokens_per_lookup, compute_ms
-- column: engine_id recorded | The engine.
-- column: resumed recorded | Lookups after a preemption.
-- column: rule derived | partial_block: the end of a request fills no block. last_token: vLLM computes the last token
--     itself, and so its block. lookahead: a block's hash covers tokens behind it (EAGLE, MTP; vLLM 0.33), and the
--     request ends there. cap: the scheduler set the lookup a limit. absent: a block was not in the cache. window_gap:
--     no whole window (or chunk) of blocks. no_state: no state of Mamba or linear attention. alignment: hits are
--     multiples of the largest block or hash unit. eagle_drop: the draft model's last block. dropped: the scheduler did
--     not take what was found. unknown: not recorded.
-- column: kv_group recorded | The KV cache group, the first of those that were asked at once; NULL for rules of the
--     request.
-- column: kv_groups recorded | Groups that were asked at once; NULL if one, or none.
-- column: kind recorded | Their kind: full, window, chunk, state or other; NULL if not recorded.
-- column: lookups derived | Admitted lookups that lost tokens to it.
-- column: gated_lookups derived | Of them, those whose hit it ended.
-- column: lost_tokens [tokens] derived | Tokens lost to it.
-- column: known_tokens [tokens] derived | Of them, in blocks that an earlier request had too.
-- column: tokens_per_lookup [tokens] derived | lost_tokens over lookups.
-- column: computed_tokens [tokens] derived | Of lost_tokens, those that no KV connector supplied.
-- column: compute_ms [ms] derived | Price of computed_tokens by the fitted cost model; NULL without one.
-- column: lost_share [ratio] derived | Share of the engine's lost tokens.

WITH by_lookup AS (
    SELECT
        engine_id,
        request,
        step,
        resumed,
        rule,
        kv_group,
        any_value(kv_groups) AS kv_groups,
        any_value(kind) AS kind,
        max(place) AS place,
        sum(lost_tokens) AS lost_tokens,
        sum(known_tokens) AS known_tokens,
        sum(computed_tokens) AS computed_tokens,
        sum(compute_ns) AS compute_ns
    FROM prefix_loss
    GROUP BY engine_id, request, step, resumed, rule, kv_group
), placed AS (
    SELECT *, place = max(place) OVER (PARTITION BY engine_id, request, step) AS gates
    FROM by_lookup
), counted AS (
    SELECT
        engine_id,
        resumed,
        rule,
        kv_group,
        any_value(kv_groups) AS kv_groups,
        any_value(kind) AS kind,
        count(*) AS lookups,
        count(*) FILTER (gates) AS gated_lookups,
        sum(lost_tokens)::BIGINT AS lost_tokens,
        sum(known_tokens)::BIGINT AS known_tokens,
        avg(lost_tokens) AS tokens_per_lookup,
        sum(computed_tokens)::BIGINT AS computed_tokens,
        sum(compute_ns) / 1e6 AS compute_ms
    FROM placed
    GROUP BY engine_id, resumed, rule, kv_group
)
SELECT *, lost_tokens / nullif(sum(lost_tokens) OVER (PARTITION BY engine_id), 0) AS lost_share
FROM counted
ORDER BY engine_id, resumed, lost_tokens DESC, rule, kv_group
