-- How many different blocks do prompts need, over time?
--
-- One row per engine and window of time, from its first lookup on; windows without lookups are left out. The working
-- set of a window is the different full blocks of the prompts looked up in it, found or not. Generated blocks count
-- from the first prompt that contains them. A cache smaller than the working set of the time between two uses of a
-- prefix cannot keep it.
--
-- group: Reuse
-- needs: block_lookup
-- param: window_ms DOUBLE = 1000 | Length of a window.
-- words: size, cache, memory
-- key: time_ns, lookups, hit_ratio, working_set_tokens, working_set_bytes, pool_blocks
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] derived | When the window begins.
-- column: lookups derived | Blocks looked up, at first admissions; the block that holds a prompt's last token is not.
-- column: hit_ratio [ratio] derived | Share of them that the GPU prefix cache had; NULL if imported.
-- column: working_set_blocks [blocks] derived | Different blocks.
-- column: working_set_tokens [tokens] derived | Their tokens.
-- column: working_set_bytes [bytes] derived | Their KV on one rank; NULL if the bytes of a block are unknown.
-- column: new_blocks [blocks] derived | Of them, those in no window before: nothing could have had them.
-- column: footprint_blocks [blocks] derived | Different blocks in this and all windows before.
-- column: footprint_bytes [bytes] derived | Their KV on one rank.
-- column: pool_blocks [blocks] recorded | Blocks of the GPU pool; NULL if imported.

WITH lookup AS (
    SELECT
        engine_id,
        ((time_ns - min(time_ns) OVER (PARTITION BY engine_id)) // ($window_ms * 1e6)::BIGINT) AS slot,
        min(time_ns) OVER (PARTITION BY engine_id) AS began_ns,
        block_hash,
        counted,
        counted AND hit AS found
    FROM block_lookup
), seen AS (
    SELECT
        engine_id,
        slot,
        began_ns,
        block_hash,
        count(*) FILTER (counted) AS lookups,
        count(found) FILTER (counted) AS told,
        count(*) FILTER (found) AS hits
    FROM lookup
    GROUP BY ALL
), first_seen AS (
    SELECT engine_id, slot, count(*) AS blocks
    FROM (SELECT engine_id, block_hash, min(slot) AS slot FROM seen GROUP BY ALL)
    GROUP BY ALL
), windows AS (
    SELECT
        engine_id,
        slot,
        any_value(began_ns) AS began_ns,
        sum(lookups)::BIGINT AS lookups,
        sum(hits) / nullif(sum(told), 0) AS hit_ratio,
        count(*) AS blocks
    FROM seen
    GROUP BY engine_id, slot
)
SELECT
    engine_id,
    began_ns + slot * ($window_ms * 1e6)::BIGINT AS time_ns,
    lookups,
    hit_ratio,
    w.blocks AS working_set_blocks,
    w.blocks * e.block_size_tokens AS working_set_tokens,
    w.blocks * e.block_bytes AS working_set_bytes,
    coalesce(f.blocks, 0) AS new_blocks,
    (sum(coalesce(f.blocks, 0)) OVER running)::BIGINT AS footprint_blocks,
    (sum(coalesce(f.blocks, 0)) OVER running)::BIGINT * e.block_bytes AS footprint_bytes,
    e.blocks AS pool_blocks
FROM windows w LEFT JOIN first_seen f USING (engine_id, slot) JOIN engine e USING (engine_id)
WINDOW running AS (PARTITION BY engine_id ORDER BY slot)
ORDER BY engine_id, slot
