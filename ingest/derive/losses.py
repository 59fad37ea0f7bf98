"""Table `prefix_loss`: the tokens that each admitted lookup did not find, divided by the rule that cut them off.

Temporary table `cut` holds the intervals of each lookup. They follow it from the request's end down to its hit: tokens
that no lookup finds, then each answer of the KV cache groups in the order in which vLLM asked them. So their lengths
add up to what was not found.
"""

from __future__ import annotations

import duckdb

_FLOOR = """
CREATE OR REPLACE TEMP MACRO whole(tokens, unit) AS CASE WHEN unit > 0 THEN tokens // unit * unit ELSE tokens END
"""

_CUT = """
CREATE TEMP TABLE cut AS
WITH answer AS (
    SELECT l.engine_id, l.request, l.step, g.* EXCLUDE (engine_id, request, step, kind, place),
        g.kind::VARCHAR AS kind, g.place::INTEGER AS place,
        row_number() OVER (PARTITION BY l.engine_id, l.request, l.step ORDER BY g.place DESC) = 1 AS last
    FROM lookup l JOIN group_lookup g USING (engine_id, request, time_ns)
), told AS (
    SELECT engine_id, kv_groups, CASE WHEN json_valid(settings) THEN settings END AS told FROM engine
), ahead AS (
    -- Tokens behind a block that its hash covers: the last ones of a request have no block with a hash.
    SELECT engine_id, greatest(coalesce((told->>'$.hash_lookahead_tokens')::INTEGER, 0), 1) AS ahead FROM told
), plain AS (
    -- One group of full attention and no draft model in the cache: only missing blocks limit its hits.
    SELECT engine_id, coalesce(kv_groups, 1) = 1
        AND NOT coalesce(told->>'$.speculative.method' SIMILAR TO '(eagle|mtp|.*_mtp|dflash|dspark).*', false)
        AND coalesce(told->>'$.kv_cache_groups[0].kind' SIMILAR TO '.*(Full|MLA)Attention.*|RSWA.*|HiddenState.*',
            true) AS plain
    FROM told
), asked AS (
    SELECT l.engine_id, l.request, l.step, l.queried_tokens, greatest(l.queried_tokens - coalesce(h.ahead, 1), 0)
            AS hashed_tokens,
        least(hashed_tokens, coalesce(l.cap_tokens, hashed_tokens)) AS limit_tokens,
        coalesce(a.unit_tokens, l.block_tokens) AS unit, coalesce(p.plain, false) AND a.request IS NULL AS plain,
        a.request IS NOT NULL AS answered
    FROM lookup l
    LEFT JOIN answer a ON a.engine_id = l.engine_id AND a.request = l.request AND a.step = l.step AND a.place = 0
    LEFT JOIN plain p ON p.engine_id = l.engine_id
    LEFT JOIN ahead h ON h.engine_id = l.engine_id
    WHERE l.enabled
), steps AS (
    SELECT a.*, CASE WHEN place = 0 THEN whole(least(bound_tokens, q.limit_tokens), unit_tokens) ELSE bound_tokens END
            AS top,
        whole(top, alignment_tokens) AS aligned,
        least(aligned, greatest(stored_tokens, hit_tokens)) AS stored,
        least(stored, greatest(kept_tokens, hit_tokens)) AS kept,
        CASE kind WHEN 'window' THEN 'window_gap' WHEN 'chunk' THEN 'window_gap' WHEN 'state' THEN 'no_state'
            ELSE 'absent' END AS missing
    FROM answer a JOIN asked q USING (engine_id, request, step)
), edges AS (
    SELECT engine_id, request, step, NULL::UTINYINT AS kv_group, NULL::UTINYINT AS kv_groups,
        NULL::VARCHAR AS kind, unnest([
            {'place': 0, 'rule': 'partial_block', 'low': whole(queried_tokens, unit), 'high': queried_tokens},
            {'place': 1, 'rule': 'last_token', 'low': whole(queried_tokens - 1, unit),
                'high': whole(queried_tokens, unit)},
            {'place': 2, 'rule': 'lookahead', 'low': whole(hashed_tokens, unit),
                'high': whole(queried_tokens - 1, unit)},
            {'place': 3, 'rule': 'cap', 'low': whole(limit_tokens, unit), 'high': whole(hashed_tokens, unit)},
            {'place': 4, 'rule': CASE WHEN NOT plain THEN 'unknown' ELSE 'absent' END,
                'low': CASE WHEN answered THEN whole(limit_tokens, unit) ELSE 0 END,
                'high': whole(limit_tokens, unit)}
        ], recursive := true)
    FROM asked
    UNION ALL BY NAME
    SELECT engine_id, request, step, kv_group, kv_groups, kind, unnest([
            {'place': 5 + 5 * place, 'rule': 'alignment', 'low': aligned, 'high': top},
            {'place': 6 + 5 * place, 'rule': CASE WHEN stored_tokens IS NULL THEN 'unknown' ELSE missing END,
                'low': coalesce(stored, hit_tokens), 'high': aligned},
            {'place': 7 + 5 * place, 'rule': 'eagle_drop', 'low': coalesce(kept, hit_tokens),
                'high': coalesce(stored, hit_tokens)},
            {'place': 8 + 5 * place, 'rule': 'alignment', 'low': hit_tokens, 'high': coalesce(kept, hit_tokens)},
            {'place': 9 + 5 * place, 'rule': 'dropped', 'low': CASE WHEN last THEN 0 ELSE hit_tokens END,
                'high': hit_tokens}
        ], recursive := true)
    FROM steps
)
SELECT e.engine_id, e.request, e.step, place, rule,
    CASE rule WHEN 'absent' THEN coalesce(kv_group, 0) WHEN 'dropped' THEN NULL ELSE kv_group END AS kv_group,
    CASE WHEN rule <> 'dropped' THEN kv_groups END AS kv_groups, CASE WHEN rule <> 'dropped' THEN kind END AS kind,
    greatest(low, l.local_hit_tokens)::BIGINT AS low, high::BIGINT AS high,
    greatest(high - greatest(low, l.hit_tokens), 0) AS computed_tokens,
    price(computed_tokens, greatest(low, l.hit_tokens), p.ns_per_token, p.ns_per_token_context) AS compute_ns
FROM edges e JOIN lookup l USING (engine_id, request, step)
LEFT JOIN cost_model p ON p.engine_id = e.engine_id AND p.used
WHERE high > greatest(low, l.local_hit_tokens)
"""

_GATE = """
CREATE TEMP TABLE gate AS
SELECT engine_id, request, step, rule, kv_group,
    sum(high - low) OVER alike AS tokens, round(sum(compute_ns) OVER alike)::BIGINT AS ns
FROM cut
WINDOW alike AS (PARTITION BY engine_id, request, step, rule, kv_group)
QUALIFY row_number() OVER (PARTITION BY engine_id, request, step ORDER BY place DESC) = 1
"""
"""The rule and group that ended a lookup at its hit, with all that they cut off."""

_INSERT = """
INSERT INTO prefix_loss
SELECT m.engine_id, m.time_ns, m.step, m.request, m.resumed,
    row_number() OVER (PARTITION BY c.engine_id, c.request, c.step ORDER BY c.place) - 1,
    c.rule, c.kv_group, c.kv_groups, c.kind, c.low, c.high - c.low,
    greatest(least(c.high, m.known_tokens) - c.low, 0), c.computed_tokens, round(c.compute_ns)::BIGINT
FROM cut c JOIN prefix_miss m USING (engine_id, request, step)
ORDER BY m.engine_id, m.time_ns, m.request, c.place
"""


def gather(connection: duckdb.DuckDBPyConnection) -> None:
    """Make temporary tables `cut` and `gate`. Table `cost_model` must be filled before."""
    for statement in (_FLOOR, _CUT, _GATE):
        connection.execute(statement)


def insert(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill table `prefix_loss`. Table `prefix_miss` must be filled before."""
    connection.execute(_INSERT)


def forget(connection: duckdb.DuckDBPyConnection) -> None:
    """Drop the temporary tables."""
    for table in ("cut", "gate"):
        connection.execute(f"DROP TABLE IF EXISTS temp.{table}")
