"""Facts about the first block that each admitted lookup had to compute, in temporary tables.

`lookup` has a row an admitted lookup; `missing` adds the hash of that block; `found`, `ahead` and `alike` say what
became of earlier blocks of that hash, who was computing it just then, and who had the same tokens under another key;
`common` says how long a prefix earlier requests had too, and `alike_head` how much of the first block. Joins are by
hash, since equal hashes are equal prefixes, and by ASOF, since a popular prefix has many lookups and many events.
"""

from __future__ import annotations

import duckdb

_LOOKUP = """
CREATE TEMP TABLE lookup AS
SELECT l.engine_id, l.request, l.step, l.time_ns, l.resumed, l.enabled, e.prefix_caching,
    l.queried_tokens::BIGINT AS queried_tokens, l.local_hit_tokens, l.external_hit_tokens, l.cap_tokens,
    l.local_hit_tokens::BIGINT + coalesce(l.external_hit_tokens, 0) AS hit_tokens,
    e.block_size_tokens AS block_tokens,
    coalesce(e.hash_block_tokens, e.block_size_tokens) AS hash_tokens,
    hit_tokens // block_tokens AS block,
    (block::BIGINT + 1) * (block_tokens // hash_tokens) - 1 AS position
FROM prefix_lookup l LEFT JOIN engine e USING (engine_id)
WHERE l.admitted AND l.request IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY l.engine_id, l.request, l.step ORDER BY l.time_ns DESC) = 1
"""

_CHAIN = """
CREATE TEMP VIEW chain AS
SELECT h.engine_id, h.request, h.step, h.position, h.block_hash, coalesce(h.token_hash, h.block_hash) AS token_hash,
    l.time_ns, l.resumed
FROM request_hash h JOIN lookup l USING (engine_id, request, step)
"""

_MISSING = """
CREATE TEMP TABLE missing AS
SELECT l.*, h.block_hash, coalesce(h.token_hash, h.block_hash) AS token_hash
FROM lookup l LEFT JOIN request_hash h
    ON h.engine_id = l.engine_id AND h.request = l.request AND h.step = l.step AND h.position = l.position
    AND l.enabled AND (l.block::BIGINT + 1) * l.block_tokens <= l.queried_tokens
"""

_EMPTIED = """
CREATE TEMP TABLE emptied AS
SELECT engine_id, time_ns, rowid AS place, row_number() OVER (PARTITION BY engine_id ORDER BY rowid) AS epoch
FROM block_event WHERE op = 'reset' AND pool = 0
"""

_COPIES = """
CREATE TEMP TABLE copies AS
WITH change AS (
    SELECT engine_id, block_hash, kv_group, time_ns, rowid AS place, op, block_id, request
    FROM block_event
    WHERE pool = 0 AND op IN ('cache', 'evict')
        AND (engine_id, block_hash) IN (SELECT (engine_id, block_hash) FROM missing WHERE block_hash IS NOT NULL)
), dated AS (
    SELECT c.*, coalesce(e.epoch, 0) AS epoch
    FROM change c ASOF LEFT JOIN emptied e ON c.engine_id = e.engine_id AND c.place >= e.place
)
SELECT engine_id, block_hash, kv_group, time_ns, place, epoch, block_id, request,
    sum(CASE op WHEN 'cache' THEN 1 ELSE -1 END) OVER life AS copies,
    max(time_ns) FILTER (op = 'cache') OVER life AS stored_ns
FROM dated
WINDOW life AS (PARTITION BY engine_id, block_hash, kv_group, epoch ORDER BY place)
QUALIFY row_number() OVER (PARTITION BY engine_id, block_hash, kv_group, time_ns ORDER BY place DESC) = 1
"""
"""Number of blocks with a hash after each change. A reset empties the cache without an event a block."""

_FOUND = """
CREATE TEMP TABLE found AS
WITH kv_groups AS (
    SELECT DISTINCT engine_id, kv_group FROM copies
), asked AS (
    SELECT m.engine_id, m.request, m.step, m.block_hash, m.time_ns, g.kv_group
    FROM missing m JOIN kv_groups g USING (engine_id) WHERE m.block_hash IS NOT NULL
), emptied_before AS (
    SELECT a.*, coalesce(e.epoch, 0) AS epoch
    FROM asked a ASOF LEFT JOIN emptied e ON a.engine_id = e.engine_id AND a.time_ns >= e.time_ns
), last_change AS (
    SELECT a.engine_id, a.request, a.step, c.epoch, c.time_ns, c.stored_ns, c.place, c.block_id,
        c.request AS taken_by,
        coalesce(c.copies > 0 AND c.epoch = a.epoch, false) AS findable,
        coalesce(c.copies > 0 AND c.epoch < a.epoch, false) AS emptied,
        coalesce(c.copies <= 0, false) AS evicted
    FROM emptied_before a ASOF LEFT JOIN copies c
        ON a.engine_id = c.engine_id AND a.block_hash = c.block_hash AND a.kv_group = c.kv_group
        AND a.time_ns >= c.time_ns
)
SELECT l.engine_id, l.request, l.step,
    bool_and(findable) AS findable,
    bool_or(findable) AS somewhere,
    bool_or(evicted) AS evicted,
    bool_or(emptied) AS emptied,
    max(e.time_ns) FILTER (emptied) AS reset_ns,
    arg_max(stored_ns, l.time_ns) FILTER (evicted OR emptied) AS stored_ns,
    max(l.time_ns) FILTER (evicted) AS evicted_ns,
    arg_max(taken_by, l.time_ns) FILTER (evicted) AS taken_by,
    arg_max(block_id, l.time_ns) FILTER (evicted) AS block_id,
    arg_max(l.place, l.time_ns) FILTER (evicted) AS place
FROM last_change l LEFT JOIN emptied e ON e.engine_id = l.engine_id AND e.epoch = l.epoch + 1
GROUP BY l.engine_id, l.request, l.step
"""
"""State of the missing hash at the lookup, over all KV cache groups: a block is found only if each has it."""

_RELEASED = """
CREATE TEMP TABLE released AS
SELECT f.engine_id, f.request, f.step, b.time_ns AS released_ns
FROM (SELECT * FROM found WHERE evicted) f
ASOF JOIN (
    SELECT engine_id, block_id, time_ns, rowid AS place FROM block_event
    WHERE pool = 0 AND op = 'free' AND ref_count = 0
) b ON f.engine_id = b.engine_id AND f.block_id = b.block_id AND f.place > b.place
"""

_AHEAD = """
CREATE TEMP TABLE ahead AS
WITH before AS (
    SELECT m.engine_id, m.request, m.step, m.time_ns, m.block_hash, c.request AS other, c.time_ns AS other_ns
    FROM (SELECT * FROM missing WHERE block_hash IS NOT NULL) m ASOF JOIN chain c
        ON m.engine_id = c.engine_id AND m.block_hash = c.block_hash AND m.time_ns > c.time_ns
), left_batch AS (
    SELECT b.*, e.time_ns AS left_ns
    FROM before b ASOF LEFT JOIN (
        SELECT engine_id, request, time_ns FROM request_event WHERE op IN ('preempt', 'finish')
    ) e ON b.engine_id = e.engine_id AND b.other = e.request AND b.other_ns < e.time_ns
)
SELECT b.engine_id, b.request, b.step, b.other, b.other_ns, s.time_ns AS stored_ns
FROM (SELECT * FROM left_batch WHERE other <> request AND (left_ns IS NULL OR left_ns > time_ns)) b
ASOF LEFT JOIN (
    SELECT engine_id, block_hash, request, time_ns FROM block_event WHERE op = 'cache' AND pool = 0
) s ON b.engine_id = s.engine_id AND b.block_hash = s.block_hash AND b.other = s.request AND b.time_ns < s.time_ns
"""
"""The latest request admitted before with the missing block in its chain, if it was still running."""

_ALIKE = """
CREATE TEMP TABLE alike AS
WITH wanted AS (
    SELECT * FROM missing WHERE block_hash IS NOT NULL
), named AS (
    SELECT engine_id, token_hash, block_hash, min(time_ns) AS time_ns, arg_min(request, time_ns) AS request
    FROM (
        SELECT engine_id, token_hash, block_hash, time_ns, request FROM chain
        UNION ALL
        SELECT engine_id, block_hash, block_hash, time_ns, request FROM block_event WHERE op = 'cache' AND pool = 0
    )
    WHERE (engine_id, token_hash) IN (SELECT (engine_id, token_hash) FROM wanted)
    GROUP BY engine_id, token_hash, block_hash
), last_named AS (
    SELECT w.engine_id, w.request, w.step, w.block_hash, n.block_hash AS other_hash, n.request AS other
    FROM wanted w ASOF JOIN named n
        ON w.engine_id = n.engine_id AND w.token_hash = n.token_hash AND w.time_ns > n.time_ns
)
SELECT a.engine_id, a.request, a.step, a.other,
    nullif(concat_ws(', ',
        CASE WHEN k.salt_key IS DISTINCT FROM o.salt_key THEN 'cache_salt' END,
        CASE WHEN k.lora_key IS DISTINCT FROM o.lora_key THEN 'lora' END,
        CASE WHEN k.multimodal_key IS DISTINCT FROM o.multimodal_key THEN 'multimodal' END), '') AS difference
FROM last_named a
LEFT JOIN keys k ON k.engine_id = a.engine_id AND k.request = a.request
LEFT JOIN keys o ON o.engine_id = a.engine_id AND o.request = a.other
WHERE a.other_hash <> a.block_hash AND a.other <> a.request
"""
"""The request that last gave these tokens a new name; keys stay with a request, so its first row tells them."""

_KEYS = """
CREATE TEMP VIEW keys AS
SELECT engine_id, request, any_value(lora_key) AS lora_key, any_value(salt_key) AS salt_key,
    any_value(multimodal_key) AS multimodal_key
FROM request_key GROUP BY engine_id, request
"""

_COMMON = """
CREATE TEMP TABLE common AS
WITH stored AS (
    SELECT engine_id, block_hash, min(time_ns) AS time_ns
    FROM block_event WHERE op = 'cache' AND pool = 0 GROUP BY engine_id, block_hash
), named AS (
    SELECT engine_id, block_hash, min(time_ns) AS time_ns FROM chain GROUP BY engine_id, block_hash
), tokens AS (
    SELECT engine_id, token_hash, min(time_ns) AS time_ns
    FROM chain WHERE (SELECT count(*) FROM alike) > 0 GROUP BY engine_id, token_hash
)
SELECT c.engine_id, c.request, c.step, max(c.position) + 1 AS blocks,
    min(c.position) FILTER (coalesce(
        c.time_ns <= CASE WHEN c.resumed THEN s.time_ns ELSE least(s.time_ns, n.time_ns) END, true)) AS first_unknown,
    min(c.position) FILTER (coalesce(c.time_ns <= least(t.time_ns, p.time_ns), true)) AS first_unknown_tokens
FROM chain c
LEFT JOIN stored s ON s.engine_id = c.engine_id AND s.block_hash = c.block_hash
LEFT JOIN named n ON n.engine_id = c.engine_id AND n.block_hash = c.block_hash
LEFT JOIN tokens t ON t.engine_id = c.engine_id AND t.token_hash = c.token_hash
LEFT JOIN stored p ON p.engine_id = c.engine_id AND p.block_hash = c.token_hash AND c.token_hash <> c.block_hash
GROUP BY c.engine_id, c.request, c.step
"""
"""The first position whose prefix no earlier request had. A resumed request named its own before: for it, only what was
stored counts."""

_ALIKE_HEAD = """
CREATE TEMP TABLE alike_head AS
WITH head AS (
    SELECT h.engine_id, h.request, h.step, h.tokens, h.head_hash, l.time_ns
    FROM request_head h JOIN lookup l USING (engine_id, request, step)
), earliest AS (
    SELECT engine_id, head_hash, min(time_ns) AS time_ns, arg_min(request, time_ns) AS other
    FROM head GROUP BY engine_id, head_hash
)
SELECT h.engine_id, h.request, h.step, max(h.tokens) AS tokens, arg_max(e.other, h.tokens) AS other
FROM head h JOIN earliest e
    ON e.engine_id = h.engine_id AND e.head_hash = h.head_hash AND e.time_ns < h.time_ns AND e.other <> h.request
GROUP BY h.engine_id, h.request, h.step
"""
"""The longest recorded beginning, less than a block, that an earlier request had too, and the first that had it."""

TABLES = ("lookup", "missing", "emptied", "copies", "found", "released", "ahead", "alike", "common", "alike_head")
VIEWS = ("chain", "keys")


def gather(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the temporary tables."""
    for statement in (_LOOKUP, _CHAIN, _KEYS, _MISSING, _EMPTIED, _COPIES, _FOUND, _RELEASED, _AHEAD, _ALIKE, _COMMON,
                      _ALIKE_HEAD):  # fmt: skip
        connection.execute(statement)


def forget(connection: duckdb.DuckDBPyConnection) -> None:
    """Drop them."""
    for view in VIEWS:
        connection.execute(f"DROP VIEW IF EXISTS temp.{view}")
    for table in TABLES:
        connection.execute(f"DROP TABLE IF EXISTS temp.{table}")
