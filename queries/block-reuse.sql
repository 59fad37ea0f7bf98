-- When a cached block is used again, how long had it waited for that?
--
-- One row per engine and kind of reuse, over all prefix-cache hits on blocks of the GPU pool. The distance of a hit
-- runs from the block's previous release, caching or hit: in time, and in blocks that any request allocated in between.
-- A cache with that many more free blocks would have kept the block.
--
-- idle: no request held the block (ref_count is 1 after the hit), so it could have been evicted; the distance runs from
-- its last release. shared: a request held it, so it could not be evicted; the distance runs from the block's last
-- event.
--
-- group: Reuse
-- needs: block_event
-- key: kind, hits, p50_ms, p90_ms, p99_ms, max_ms
-- column: engine_id recorded | The engine.
-- column: kind derived | idle or shared.
-- column: hits derived | Hits of that kind.
-- column: mean_ms [ms] derived | Mean distance.
-- column: p10_ms [ms] derived | A tenth of the hits had at most this distance.
-- column: p50_ms [ms] derived | Median distance.
-- column: p90_ms [ms] derived | Nine tenths of the hits had at most this distance.
-- column: p99_ms [ms] derived | 99 of 100 hits had at most this distance.
-- column: max_ms [ms] derived | Largest distance.
-- column: mean_allocated_blocks [blocks] derived | Mean number of blocks allocated in between.
-- column: p10_allocated_blocks [blocks] derived | A tenth of the hits had at most so many.
-- column: p50_allocated_blocks [blocks] derived | Median.
-- column: p90_allocated_blocks [blocks] derived | Nine tenths of the hits had at most so many.
-- column: p99_allocated_blocks [blocks] derived | 99 of 100 hits had at most so many.
-- column: max_allocated_blocks [blocks] derived | Most.

WITH distance AS (
    SELECT
        op,
        block >> 32 AS engine_id,
        CASE WHEN ref_count = 1 THEN 'idle' ELSE 'shared' END AS kind,
        time_ns - lag(time_ns) OVER life AS ns,
        allocated_blocks - lag(allocated_blocks) OVER life AS blocks
    FROM pool_event
    WHERE op IN ('hit', 'free', 'cache')
    WINDOW life AS (PARTITION BY block ORDER BY place)
), distribution AS (
    SELECT
        engine_id::INTEGER AS engine_id,
        kind,
        count(*) AS hits,
        avg(ns) AS mean_ns,
        quantile_disc(ns, [0.1, 0.5, 0.9, 0.99, 1.0]) AS ns,
        avg(blocks) AS mean_blocks,
        quantile_disc(blocks, [0.1, 0.5, 0.9, 0.99, 1.0]) AS blocks
    FROM distance
    WHERE op = 'hit' AND ns IS NOT NULL
    GROUP BY engine_id, kind
)
SELECT
    engine_id,
    kind,
    hits,
    mean_ns / 1e6 AS mean_ms,
    ns[1] / 1e6 AS p10_ms,
    ns[2] / 1e6 AS p50_ms,
    ns[3] / 1e6 AS p90_ms,
    ns[4] / 1e6 AS p99_ms,
    ns[5] / 1e6 AS max_ms,
    mean_blocks AS mean_allocated_blocks,
    blocks[1] AS p10_allocated_blocks,
    blocks[2] AS p50_allocated_blocks,
    blocks[3] AS p90_allocated_blocks,
    blocks[4] AS p99_allocated_blocks,
    blocks[5] AS max_allocated_blocks
FROM distribution
ORDER BY engine_id, kind
