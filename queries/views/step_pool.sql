-- The GPU's block pool after a step's `schedule`: blocks in use, free but still cached, and free and empty.
--
-- Used and free blocks are recorded. Which free blocks still hold findable content is derived: the recorder counts the
-- cached blocks, used or free, and the block events tell which used blocks are not cached.
--
-- needs: block_event, engine, step_schedule
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: time_ns [ns] recorded | When `schedule` returned; of an imported engine, when the step began.
-- column: blocks [blocks] recorded | Blocks that requests can use; used and free together where the engine did not say.
-- column: used_blocks [blocks] recorded | Blocks referenced by a request, a connector or a pin.
-- column: free_blocks [blocks] recorded | The others.
-- column: cached_blocks [blocks] recorded | Blocks that a prefix lookup can find, used or free.
-- column: cached_free_blocks [blocks] derived | Free blocks whose content a prefix lookup can still find; NULL without
--     block events.
-- column: empty_free_blocks [blocks] derived | The other free blocks.

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
), pool AS (
    SELECT
        s.engine_id,
        s.step,
        coalesce(s.scheduled_ns, s.start_ns) AS time_ns,
        coalesce(e.blocks, s.used_blocks + s.free_blocks) AS blocks,
        s.used_blocks,
        s.free_blocks,
        s.cached_blocks,
        CASE
            WHEN count(c.uncached_blocks) OVER (PARTITION BY s.engine_id) > 0 THEN
                s.cached_blocks - s.used_blocks
                + (sum(coalesce(c.uncached_blocks, 0)) OVER (PARTITION BY s.engine_id ORDER BY s.step))::BIGINT
        END AS cached_free_blocks
    FROM step_schedule s
    LEFT JOIN step_change c USING (engine_id, step)
    LEFT JOIN engine e ON e.engine_id = s.engine_id
)
SELECT *, free_blocks - cached_free_blocks AS empty_free_blocks FROM pool
