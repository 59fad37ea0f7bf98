-- How full was the KV cache over time: blocks in use, free but still cached, and free and empty?
--
-- One row per step, as the pool was when `schedule` returned; with bucket_ms one row per bucket, averaged over its
-- steps. Used and free blocks are recorded. Which free blocks still hold findable content is derived: the recorder
-- counts the cached blocks, used or free, and the block events tell which used blocks are not cached. Only the GPU pool
-- counts.
--
-- group: KV memory
-- needs: step_schedule
-- param: bucket_ms DOUBLE = 0 | Width of a bucket; 0 gives a row per step.
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When `schedule` returned, UNIX time; of a bucket, its first step's; of an imported
--     engine, when the step began.
-- column: step recorded | The step; of a bucket, its first one.
-- column: steps [steps] derived | Steps in the row.
-- column: blocks [blocks] recorded | Blocks that requests can use; used and free together where the engine did not say.
-- column: used_blocks [blocks] derived | Blocks referenced by a request, a connector or a pin (mean).
-- column: cached_free_blocks [blocks] derived | Free blocks whose content a prefix lookup can still find (mean); NULL
--     without block events.
-- column: empty_free_blocks [blocks] derived | The other free blocks (mean).
-- column: max_used_blocks [blocks] derived | Most blocks in use in one step of the row.
-- column: used_share [ratio] derived | used_blocks over blocks.
-- column: cached_free_share [ratio] derived | cached_free_blocks over blocks.
-- column: empty_free_share [ratio] derived | empty_free_blocks over blocks.

WITH held AS (
    -- A block is in use without being cached from its allocation to the first of caching and release, and again if it
    -- is evicted in use. Hits and releases of one of several references change nothing about that.
    SELECT
        engine_id,
        time_ns,
        rowid AS place,
        engine_id::BIGINT << 32 | block_id AS block,
        (op IN ('allocate', 'evict'))::TINYINT AS uncached
    FROM block_event
    WHERE
        pool = 0
        AND (op IN ('allocate', 'cache') OR (op = 'free' AND ref_count = 0) OR (op = 'evict' AND ref_count > 0))
), change AS (
    SELECT
        engine_id,
        time_ns,
        uncached - coalesce(lag(uncached) OVER (PARTITION BY block ORDER BY place), 0) AS uncached_blocks
    FROM held
), step_change AS (
    SELECT s.engine_id, s.step, sum(c.uncached_blocks)::INTEGER AS uncached_blocks
    FROM (SELECT * FROM change WHERE uncached_blocks <> 0) c
    ASOF JOIN step_schedule s ON c.engine_id = s.engine_id AND s.scheduled_ns >= c.time_ns
    GROUP BY s.engine_id, s.step
), state AS (
    SELECT
        s.engine_id,
        s.step,
        s.scheduled_ns,
        s.used_blocks,
        s.free_blocks,
        coalesce(e.blocks, s.used_blocks + s.free_blocks) AS blocks,
        CASE
            WHEN count(c.uncached_blocks) OVER (PARTITION BY s.engine_id) > 0 THEN
                s.cached_blocks - s.used_blocks
                + (sum(coalesce(c.uncached_blocks, 0)) OVER (PARTITION BY s.engine_id ORDER BY s.step))::BIGINT
        END AS cached_free_blocks,
        CASE
            WHEN $bucket_ms > 0
                THEN
                    (s.scheduled_ns - min(s.scheduled_ns) OVER (PARTITION BY s.engine_id)) // ($bucket_ms * 1e6)::BIGINT
            ELSE s.step
        END AS bucket
    FROM (
        SELECT * EXCLUDE (scheduled_ns), coalesce(scheduled_ns, start_ns) AS scheduled_ns FROM step_schedule
    ) s
    LEFT JOIN step_change c USING (engine_id, step)
    LEFT JOIN engine e ON e.engine_id = s.engine_id
    WHERE ($engine IS NULL OR s.engine_id = $engine) AND s.used_blocks IS NOT NULL
), averaged AS (
    SELECT
        engine_id,
        min(scheduled_ns) AS time_ns,
        min(step) AS step,
        count(*) AS steps,
        max(blocks) AS blocks,
        avg(used_blocks) AS used_blocks,
        avg(cached_free_blocks) AS cached_free_blocks,
        avg(free_blocks - cached_free_blocks) AS empty_free_blocks,
        max(used_blocks) AS max_used_blocks
    FROM state
    GROUP BY engine_id, bucket
)
SELECT
    *,
    used_blocks / blocks AS used_share,
    cached_free_blocks / blocks AS cached_free_share,
    empty_free_blocks / blocks AS empty_free_share
FROM averaged
ORDER BY engine_id, time_ns, step
