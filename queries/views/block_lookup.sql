-- A block that was looked up in the prefix cache: a full block of a prompt, at each admission.
--
-- Hits are named by the block's own history, the others by request_hash. Where KV cache groups differ, hits are those
-- of full attention with blocks of engine.block_size_tokens: others only have blocks of a prefix's end. Imported request
-- traces have a row for each full block of a prompt at its arrival.
--
-- needs: block_event, engine, kv_group, prefix_lookup, request, request_hash
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When the lookup returned; imported: the request's arrival.
-- column: request recorded | The request.
-- column: step recorded | The step that admitted it; NULL if imported.
-- column: position derived | Index of the block in the request, in blocks of engine.block_size_tokens.
-- column: block_hash derived | Which block: its tokens and all before it.
-- column: hit derived | The GPU prefix cache had it; NULL if imported.
-- column: counted derived | It counts as a lookup: at the request's first admission, and of a block that does not hold
--     the last token, which vLLM always computes.

WITH lookup AS (
    SELECT
        l.engine_id, l.request, l.step, l.time_ns, l.resumed, l.queried_tokens,
        l.local_hit_tokens // e.block_size_tokens AS hit_blocks,
        e.block_size_tokens AS block_tokens,
        e.block_size_tokens // coalesce(e.hash_block_tokens, e.block_size_tokens) AS hashes_a_block
    FROM prefix_lookup l JOIN engine e USING (engine_id)
    WHERE l.admitted AND l.enabled
), group_kind AS (
    SELECT g.engine_id, g.kv_group, g.kind = 'full' AND g.block_size_tokens = e.block_size_tokens AS whole
    FROM kv_group g JOIN engine e USING (engine_id)
), odd AS (
    SELECT engine_id, kv_group FROM group_kind
    WHERE NOT whole AND engine_id IN (SELECT engine_id FROM group_kind WHERE whole)
), hit AS (
    SELECT engine_id, request, step, block_id, rowid AS place FROM block_event
    WHERE op = 'hit' AND pool = 0
), named AS (
    SELECT h.engine_id, h.request, h.step, c.block_hash, min(h.place) AS place
    FROM hit h ASOF JOIN (
        SELECT engine_id, block_id, kv_group, block_hash, rowid AS place
        FROM block_event WHERE op = 'cache' AND pool = 0
    ) c ON h.engine_id = c.engine_id AND h.block_id = c.block_id AND h.place > c.place
    WHERE (c.engine_id, c.kv_group) NOT IN (FROM odd)
    GROUP BY ALL
), block AS (
    SELECT
        engine_id, request, step, block_hash,
        row_number() OVER (PARTITION BY engine_id, request, step ORDER BY place) - 1 AS position, true AS hit
    FROM named
    UNION ALL
    SELECT h.engine_id, h.request, h.step, h.block_hash, (h.position::BIGINT + 1) // l.hashes_a_block - 1, false
    FROM request_hash h JOIN lookup l USING (engine_id, request, step)
    WHERE (h.position::BIGINT + 1) % l.hashes_a_block = 0
)
SELECT
    engine_id, l.time_ns, request, step, b.position::INTEGER AS position, b.block_hash, b.hit,
    NOT l.resumed AND (b.position::BIGINT + 1) * l.block_tokens < l.queried_tokens AS counted
FROM block b JOIN lookup l USING (engine_id, request, step)
WHERE b.hit = (b.position < l.hit_blocks)
UNION ALL
SELECT
    h.engine_id, r.arrival_ns, h.request, NULL, h.position, h.block_hash, NULL,
    (h.position::BIGINT + 1) * e.block_size_tokens < r.prompt_tokens
FROM request_hash h JOIN request r USING (request) JOIN engine e ON e.engine_id = h.engine_id
WHERE
    h.engine_id NOT IN (SELECT engine_id FROM prefix_lookup)
    AND (h.position::BIGINT + 1) * e.block_size_tokens <= r.prompt_tokens
