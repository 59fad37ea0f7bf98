-- Why did a request's prefix lookup miss, and what did that cost?
--
-- One row per admitted lookup, in order: a request's first admission and each one after a preemption. The verdict is on
-- the first block that had to be computed. Ingest derives it from the requests' hash chains and the block events.
-- `avoidable_tokens` counts what an earlier request had too and vLLM could have reused, in whole blocks; prices are
-- those of query cost-model and only as good as its fit. `gate_rule` is the rule of vLLM's lookup that ended the hit
-- where it did; query prefix-gates sums all such rules. docs/misses.md explains verdicts and rules.
--
-- group: Prefix caching
-- needs: prefix_miss
-- param: session VARCHAR = NULL | Only the requests of this session.
-- param: verdict VARCHAR = NULL | Only this verdict.
-- param: rule VARCHAR = NULL | Only this gate_rule.
-- key: request, session, turn, verdict, recomputed_tokens, why
-- worst: avoidable_tokens
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When the lookup returned, UNIX time.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: resumed recorded | The request had been preempted before.
-- column: verdict derived | Why the first block that had to be computed was not found.
-- column: queried_tokens [tokens] recorded | Tokens of the request.
-- column: local_hit_tokens [tokens] recorded | Of them, found in the GPU prefix cache.
-- column: external_hit_tokens [tokens] recorded | Of them, supplied by a KV connector; NULL if none was asked.
-- column: known_tokens [tokens] derived | Longest prefix, in whole blocks, that an earlier request had too; with
--     part_of_block at least so many tokens.
-- column: recomputed_tokens [tokens] derived | Tokens that had to be computed.
-- column: avoidable_tokens [tokens] derived | Of them, those that a cache which lost nothing would have supplied.
-- column: recompute_ms [ms] derived | Price of recomputed_tokens by the fitted cost model; NULL without one.
-- column: avoidable_ms [ms] derived | Price of avoidable_tokens by the fitted cost model; NULL without one.
-- column: gate_rule derived | The rule that ended the hit: partial_block, last_token, lookahead, cap, absent, window_gap,
--     no_state, alignment, eagle_drop, dropped; unknown if it was not recorded.
-- column: gate_group derived | The KV cache group that it held for; NULL for rules of the request.
-- column: gate_tokens [tokens] derived | Tokens that this rule and group cut off.
-- column: gate_ms [ms] derived | Price of those of them that had to be computed; NULL without a fitted cost model.
-- column: why derived | The verdict in a sentence.

SELECT
    m.engine_id,
    m.time_ns,
    m.request,
    r.external_id,
    r.session,
    r.turn,
    m.resumed,
    m.verdict,
    m.queried_tokens,
    m.local_hit_tokens,
    m.external_hit_tokens,
    m.known_tokens,
    m.recomputed_tokens,
    m.avoidable_tokens,
    m.recompute_ns / 1e6 AS recompute_ms,
    m.avoidable_ns / 1e6 AS avoidable_ms,
    m.gate_rule,
    m.gate_group,
    m.gate_tokens,
    m.gate_ns / 1e6 AS gate_ms,
    m.why
FROM prefix_miss m LEFT JOIN request r USING (request)
WHERE
    ($session IS NULL OR r.session = $session)
    AND ($verdict IS NULL OR m.verdict = $verdict)
    AND ($rule IS NULL OR m.gate_rule = $rule)
ORDER BY m.engine_id, m.time_ns, m.request
