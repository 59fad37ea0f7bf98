"""Tables `prefix_miss` and `prefix_loss`: why each admitted prefix lookup ended where it did, and what that cost."""

from __future__ import annotations

import duckdb

from kvtrace.ingest.derive import losses, miss_inputs, tiers

_MACROS = (
    """
    CREATE TEMP MACRO span(ns) AS CASE
        WHEN ns < 1e6 THEN format('{:.0f} us', ns / 1e3)
        WHEN ns < 1e9 THEN format('{:.1f} ms', ns / 1e6)
        ELSE format('{:.1f} s', ns / 1e9) END
    """,
    """
    CREATE TEMP MACRO price(tokens, context, per_token, per_context) AS
        tokens * per_token + per_context * (tokens::DOUBLE * context + tokens::DOUBLE * (tokens::DOUBLE + 1) / 2)
    """,
)

_INSERT = """
INSERT INTO prefix_miss
WITH judged AS (
    SELECT m.*, f.stored_ns AS found_stored_ns, r.released_ns, f.evicted_ns, f.reset_ns, f.taken_by,
        a.other AS ahead, a.stored_ns AS ahead_stored_ns, k.other AS alike, k.difference,
        t.evicted_ns AS tier_evicted_ns,
        c.blocks, c.first_unknown, c.first_unknown_tokens, d.other AS head_of,
        greatest(m.hash_tokens * coalesce(c.first_unknown, c.blocks, 0), CASE WHEN m.block = 0 THEN d.tokens END)
            AS begun,
        g.rule AS gate_rule, g.kv_group AS gate_group, g.tokens AS gate_tokens, g.ns AS gate_ns,
        CASE
            WHEN NOT m.enabled AND coalesce(m.prefix_caching, false) THEN 'reading_skipped'
            WHEN NOT m.enabled THEN 'caching_off'
            WHEN (m.block::BIGINT + 1) * m.block_tokens > m.queried_tokens THEN 'shorter_than_block'
            WHEN m.block_hash IS NULL THEN 'unknown'
            WHEN f.findable AND (m.block::BIGINT + 1) * m.block_tokens = m.queried_tokens THEN 'last_token'
            WHEN f.findable THEN 'not_used'
            WHEN a.other_ns > coalesce(f.evicted_ns, f.reset_ns, 0) THEN 'not_finished_storing'
            WHEN f.evicted AND t.evicted_ns IS NOT NULL THEN 'evicted_from_tier'
            WHEN f.evicted THEN 'evicted'
            WHEN f.emptied THEN 'reset'
            WHEN f.somewhere THEN 'not_used'
            WHEN k.other IS NOT NULL THEN 'different_key'
            WHEN m.engine_id IN (SELECT process_id FROM discarded) THEN 'unknown'
            WHEN m.engine_id NOT IN (SELECT engine_id FROM block_event WHERE engine_id IS NOT NULL) THEN 'unknown'
            WHEN begun > m.hit_tokens AND begun < (m.block::BIGINT + 1) * m.block_tokens THEN 'part_of_block'
            ELSE 'never_stored'
        END AS verdict
    FROM missing m
    LEFT JOIN found f USING (engine_id, request, step)
    LEFT JOIN released r USING (engine_id, request, step)
    LEFT JOIN ahead a USING (engine_id, request, step)
    LEFT JOIN alike k USING (engine_id, request, step)
    LEFT JOIN tier_loss t USING (engine_id, request, step)
    LEFT JOIN gate g USING (engine_id, request, step)
    LEFT JOIN common c USING (engine_id, request, step)
    LEFT JOIN alike_head d USING (engine_id, request, step)
), measured AS (
    SELECT *,
        CASE WHEN enabled AND block_tokens IS NOT NULL THEN greatest(hit_tokens, hash_tokens * coalesce(CASE verdict
            WHEN 'different_key' THEN coalesce(first_unknown_tokens, blocks)
            ELSE coalesce(first_unknown, blocks) END, 0)) END AS hashed_tokens,
        greatest(hashed_tokens, CASE verdict WHEN 'part_of_block' THEN begun END) AS known_tokens,
        queried_tokens - hit_tokens AS recomputed_tokens,
        CASE verdict WHEN 'evicted' THEN taken_by WHEN 'evicted_from_tier' THEN taken_by
            WHEN 'not_finished_storing' THEN ahead WHEN 'different_key' THEN alike
            WHEN 'part_of_block' THEN head_of END AS other_request,
        CASE verdict WHEN 'evicted' THEN evicted_ns WHEN 'evicted_from_tier' THEN evicted_ns
            WHEN 'reset' THEN reset_ns END AS lost_ns,
        CASE WHEN verdict IN ('evicted', 'evicted_from_tier', 'reset') THEN found_stored_ns
            WHEN verdict = 'not_finished_storing' THEN ahead_stored_ns END AS stored_ns
    FROM judged
), counted AS (
    -- vLLM always computes the last token, so the block that holds it is never taken from the cache.
    SELECT *, CASE WHEN enabled THEN greatest(
        least(hashed_tokens, (queried_tokens - 1) // block_tokens * block_tokens) - hit_tokens, 0) END
        AS avoidable_tokens
    FROM measured
), named AS (
    SELECT *, coalesce(q.external_id, q.internal_id, '#' || other_request) AS other_name
    FROM counted LEFT JOIN (SELECT request AS other_request, external_id, internal_id FROM request) q
    USING (other_request)
)
SELECT n.engine_id, n.time_ns, n.step, n.request, n.resumed, n.verdict, n.queried_tokens, n.local_hit_tokens,
    n.external_hit_tokens, n.block, n.block_hash, n.known_tokens, n.recomputed_tokens, n.avoidable_tokens,
    round(price(n.recomputed_tokens, n.hit_tokens, c.ns_per_token, c.ns_per_token_context))::BIGINT,
    round(price(n.avoidable_tokens, n.hit_tokens, c.ns_per_token, c.ns_per_token_context))::BIGINT,
    n.stored_ns,
    CASE WHEN verdict IN ('evicted', 'evicted_from_tier') THEN n.released_ns END,
    n.lost_ns,
    n.other_request,
    CASE WHEN verdict = 'different_key' THEN n.difference END,
    n.gate_rule, n.gate_group, n.gate_tokens, n.gate_ns,
    CASE verdict
        WHEN 'caching_off' THEN 'Prefix caching is off in this engine.'
        WHEN 'reading_skipped' THEN 'The request asked not to read the prefix cache, as prompt log probabilities do.'
        WHEN 'unknown' THEN CASE
            WHEN n.block_hash IS NULL THEN format('The hash of block {} was not recorded.', n.block)
            WHEN n.engine_id NOT IN (SELECT process_id FROM discarded) THEN 'What happened to blocks was not recorded.'
            ELSE 'Nobody stored it in the part of the recording that was kept; before that, nobody knows.' END
        WHEN 'shorter_than_block' THEN CASE
            WHEN n.block = 0 THEN format('Its {} tokens are fewer than a block of {}.', queried_tokens, block_tokens)
            ELSE format('All {} full blocks were found; the rest, {} of its {} tokens, does not fill a block of '
                '{}.', n.block, queried_tokens - n.block * block_tokens, queried_tokens, block_tokens) END
        WHEN 'last_token' THEN format('All {} tokens were cached, but vLLM always computes the last one, and with it '
            'its whole block of {}.', queried_tokens, block_tokens)
        WHEN 'not_used' THEN format('Block {} was in the cache, but vLLM did not use it{}.', n.block, coalesce(': '
            || CASE gate_rule
                WHEN 'alignment' THEN 'hits are multiples of the largest block or hash unit'
                WHEN 'eagle_drop' THEN 'the draft model needs the last block computed (EAGLE, MTP)'
                WHEN 'cap' THEN 'the scheduler set the lookup a limit'
                WHEN 'dropped' THEN 'the scheduler did not take what the lookup found'
                WHEN 'window_gap' THEN format('KV cache group {} had no whole window there', gate_group)
                WHEN 'no_state' THEN format('KV cache group {} had no state there', gate_group)
                WHEN 'absent' THEN format('KV cache group {} did not have it', gate_group) END, ''))
        WHEN 'evicted' THEN format('Block {} was stored {} before this lookup and evicted {} before it{}{}.', n.block,
            span(time_ns - stored_ns), span(time_ns - lost_ns), coalesce(' for request ' || other_name, ''),
            coalesce(', ' || span(lost_ns - released_ns) || ' after its last use', ''))
        WHEN 'evicted_from_tier' THEN format('Block {} was evicted from the GPU {} before this lookup and from the '
            'offload tier {} before it.', n.block, span(time_ns - lost_ns), span(time_ns - tier_evicted_ns))
        WHEN 'reset' THEN format('The prefix cache was reset {} before this lookup, and block {} was lost with it.',
            span(time_ns - lost_ns), n.block)
        WHEN 'not_finished_storing' THEN format('Request {} was computing the same prefix and had not stored block {} '
            'yet{}.', other_name, n.block, coalesce('; it did ' || span(stored_ns - time_ns) || ' later', ''))
        WHEN 'different_key' THEN format('Request {} had the same first {} tokens, but with another {}.', other_name,
            known_tokens, coalesce(difference, 'key'))
        WHEN 'part_of_block' THEN format('{} had at least its first {} tokens, too, but not all of block {}, which has '
            '{}.', coalesce('Request ' || other_name, 'An earlier request'), known_tokens, n.block, block_tokens)
        WHEN 'never_stored' THEN CASE
            WHEN hit_tokens = 0 THEN format('No earlier request stored its first block of {} tokens.', block_tokens)
            ELSE format('No earlier request stored its prefix beyond the first {} tokens.', hit_tokens) END
    END
FROM named n LEFT JOIN cost_model c ON c.engine_id = n.engine_id AND c.used
ORDER BY n.engine_id, n.time_ns, n.request
"""


def insert_misses(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill tables `prefix_miss`, a row an admitted lookup, and `prefix_loss`, a row a rule that cut it.

    Table `cost_model` must be filled before.
    """
    for macro in _MACROS:
        connection.execute(macro.replace("TEMP MACRO", "OR REPLACE TEMP MACRO", 1))
    try:
        miss_inputs.gather(connection)
        tiers.gather(connection)
        losses.gather(connection)
        connection.execute(_INSERT)
        losses.insert(connection)
    finally:
        losses.forget(connection)
        tiers.forget(connection)
        miss_inputs.forget(connection)
