-- How long does content stay in a block, and how long does it lie unused before it is evicted?
--
-- One row per engine and kind of stay, over the blocks of the GPU pool, in time and in blocks allocated meanwhile by
-- any request.
--
-- evicted: from a block's allocation to its eviction. reallocated: from its allocation to the next one without an
-- eviction in between, so it was never cached, or the prefix cache was reset. unended: from an allocation to the last
-- block event of the engine, for content still there when the recording ended; its stays are cut short.
-- idle_before_eviction: from the last release to the eviction, the end of stays of kind evicted.
--
-- group: KV memory
-- needs: block_event
-- key: kind, stays, p50_ms, p90_ms, p99_ms, max_ms
-- column: engine_id recorded | The engine.
-- column: kind derived | evicted, reallocated, unended or idle_before_eviction.
-- column: stays derived | Stays of that kind.
-- column: mean_ms [ms] derived | Mean length.
-- column: p10_ms [ms] derived | A tenth of the stays were at most this long.
-- column: p50_ms [ms] derived | Median length.
-- column: p90_ms [ms] derived | Nine tenths of the stays were at most this long.
-- column: p99_ms [ms] derived | 99 of 100 stays were at most this long.
-- column: max_ms [ms] derived | Longest.
-- column: mean_allocated_blocks [blocks] derived | Mean number of blocks allocated meanwhile.
-- column: p50_allocated_blocks [blocks] derived | Median.
-- column: p90_allocated_blocks [blocks] derived | Nine tenths of the stays saw at most so many.
-- column: max_allocated_blocks [blocks] derived | Most.

WITH ended AS (
    SELECT
        engine_id,
        max(CASE WHEN op <> 'reset' THEN time_ns END) AS ended_ns,
        max(allocated_blocks) AS allocated_blocks
    FROM pool_event
    GROUP BY engine_id
), content AS (
    SELECT
        block >> 32 AS engine_id,
        op,
        lead(op) OVER life AS next_op,
        time_ns,
        lead(time_ns) OVER life AS next_ns,
        allocated_blocks,
        lead(allocated_blocks) OVER life AS next_allocated
    FROM pool_event
    WHERE op IN ('allocate', 'evict')
    WINDOW life AS (PARTITION BY block ORDER BY place)
), idle AS (
    SELECT
        block >> 32 AS engine_id,
        op = 'free' AND lead(op) OVER life = 'evict' AS last_release,
        lead(time_ns) OVER life - time_ns AS ns,
        lead(allocated_blocks) OVER life - allocated_blocks AS blocks
    FROM pool_event
    WHERE ref_count = 0 AND op IN ('free', 'evict')
    WINDOW life AS (PARTITION BY block ORDER BY place)
), stay AS (
    SELECT
        c.engine_id,
        CASE c.next_op WHEN 'evict' THEN 'evicted' WHEN 'allocate' THEN 'reallocated' ELSE 'unended' END AS kind,
        coalesce(c.next_ns, e.ended_ns) - c.time_ns AS ns,
        -- The allocation that takes a block over is no part of the stay it ends.
        coalesce(c.next_allocated - (c.next_op = 'allocate')::INTEGER, e.allocated_blocks)
        - c.allocated_blocks AS blocks
    FROM content c JOIN ended e USING (engine_id)
    WHERE c.op = 'allocate'
    UNION ALL
    SELECT engine_id, 'idle_before_eviction', ns, blocks FROM idle WHERE last_release
), distribution AS (
    SELECT
        engine_id::INTEGER AS engine_id,
        kind,
        count(*) AS stays,
        avg(ns) AS mean_ns,
        quantile_disc(ns, [0.1, 0.5, 0.9, 0.99, 1.0]) AS ns,
        avg(blocks) AS mean_blocks,
        quantile_disc(blocks, [0.5, 0.9, 1.0]) AS blocks
    FROM stay
    GROUP BY engine_id, kind
)
SELECT
    engine_id,
    kind,
    stays,
    mean_ns / 1e6 AS mean_ms,
    ns[1] / 1e6 AS p10_ms,
    ns[2] / 1e6 AS p50_ms,
    ns[3] / 1e6 AS p90_ms,
    ns[4] / 1e6 AS p99_ms,
    ns[5] / 1e6 AS max_ms,
    mean_blocks AS mean_allocated_blocks,
    blocks[1]::BIGINT AS p50_allocated_blocks,
    blocks[2]::BIGINT AS p90_allocated_blocks,
    blocks[3]::BIGINT AS max_allocated_blocks
FROM distribution
ORDER BY engine_id, kind
