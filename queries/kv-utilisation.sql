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
-- key: time_ns, step, used_share, cached_free_share, empty_free_share, blocks
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

WITH state AS (
    SELECT
        *,
        CASE
            WHEN $bucket_ms > 0
                THEN (time_ns - min(time_ns) OVER (PARTITION BY engine_id)) // ($bucket_ms * 1e6)::BIGINT
            ELSE step
        END AS bucket
    FROM step_pool
    WHERE ($engine IS NULL OR engine_id = $engine) AND used_blocks IS NOT NULL
), averaged AS (
    SELECT
        engine_id,
        min(time_ns) AS time_ns,
        min(step) AS step,
        count(*) AS steps,
        max(blocks) AS blocks,
        avg(used_blocks) AS used_blocks,
        avg(cached_free_blocks) AS cached_free_blocks,
        avg(empty_free_blocks) AS empty_free_blocks,
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
