-- Would half, twice or four times the cache find more?
--
-- Four rows per recorded engine: LRU caches of 0.5, 1, 2 and 4 times its GPU pool, asked for the same blocks in the same
-- order. Hits are counted in whole blocks, at first admissions. The engine's own pool also keeps what running requests
-- hold, so recorded_hit_tokens may differ from hit_tokens of the same size. Computed when asked, in about a second for two
-- million references. `kvtrace reuse` has other sizes and the best possible policy.
--
-- group: Reuse
-- needs: reuse_size
-- words: size, cache, memory, more, twice, double
-- key: times, size_blocks, hit_tokens, hit_rate, more_hit_tokens, recorded_hit_tokens
-- column: engine_id recorded | The engine.
-- column: times [ratio] derived | The cache's size as a multiple of the pool's.
-- column: size_blocks [blocks] derived | The size.
-- column: size_tokens [tokens] derived | Its tokens.
-- column: size_bytes [bytes] derived | Its KV on one rank; NULL if the bytes of a block are unknown.
-- column: lookups derived | Blocks looked up; the block that holds a prompt's last token is not.
-- column: hit_blocks [blocks] derived | Of them, found by a cache of that size.
-- column: hit_tokens [tokens] derived | Their tokens.
-- column: hit_rate [ratio] derived | hit_blocks over lookups.
-- column: more_hit_tokens [tokens] derived | hit_tokens less those of the pool's own size.
-- column: recorded_hit_tokens [tokens] derived | Tokens of the blocks that the engine's own pool had; only in the row of its
--     size.

SELECT
    s.engine_id,
    s.times,
    s.size_blocks,
    s.size_blocks * e.block_size_tokens AS size_tokens,
    s.size_blocks * e.block_bytes AS size_bytes,
    s.lookups,
    s.hits AS hit_blocks,
    s.hits * e.block_size_tokens AS hit_tokens,
    CASE WHEN s.lookups > 0 THEN s.hits / s.lookups END AS hit_rate,
    (s.hits - p.hits) * e.block_size_tokens AS more_hit_tokens,
    s.recorded_hits * e.block_size_tokens AS recorded_hit_tokens
FROM reuse_size s
JOIN engine e ON e.engine_id = s.engine_id
LEFT JOIN reuse_size p ON p.engine_id = s.engine_id AND p.times = 1
ORDER BY s.engine_id, s.times
