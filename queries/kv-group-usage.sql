-- How many blocks did each KV cache group of a hybrid model hold over time, and how many of its slots held no token?
--
-- One row per step and group of an engine with several groups, as it was when `schedule` returned; with bucket_ms one row per bucket, averaged over its
-- steps. Blocks are those of the pool, with references; a block that several requests share counts once. Blocks out of a
-- window and states that no later token needs are given back and not counted.
--
-- group: KV memory
-- needs: kv_group, block_event, step_schedule
-- param: bucket_ms DOUBLE = 0 | Width of a bucket; 0 gives a row per step.
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- words: hybrid, sliding window, mamba, utilisation, waste
-- key: time_ns, kv_group, kind, used_blocks, used_share, wasted_tokens
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When `schedule` returned, UNIX time; of a bucket, its first step's.
-- column: step recorded | The step; of a bucket, its first one.
-- column: steps [steps] derived | Steps in the row.
-- column: kv_group recorded | The KV cache group.
-- column: kind derived | full, window, chunk, state or other.
-- column: used_blocks [blocks] derived | Blocks of the group that have references (mean).
-- column: used_share [ratio] derived | used_blocks over the blocks of the pool.
-- column: stored_tokens [tokens] derived | Tokens of the requests that hold blocks (mean); NULL without pages.
-- column: wasted_tokens [tokens] derived | Slots of their tables behind the last token (mean); NULL without pages.

WITH state AS (
    SELECT
        *,
        CASE
            WHEN $bucket_ms > 0
                THEN (time_ns - min(time_ns) OVER (PARTITION BY engine_id)) // ($bucket_ms * 1e6)::BIGINT
            ELSE step
        END AS bucket
    FROM step_group
    WHERE $engine IS NULL OR engine_id = $engine
), averaged AS (
    SELECT
        engine_id,
        kv_group,
        kind,
        min(time_ns) AS time_ns,
        min(step) AS step,
        count(*) AS steps,
        avg(used_blocks) AS used_blocks,
        avg(table_tokens) AS stored_tokens,
        avg(table_slots - table_tokens) AS wasted_tokens
    FROM state
    GROUP BY engine_id, bucket, kv_group, kind
)
SELECT
    a.engine_id, a.time_ns, a.step, a.steps, a.kv_group, a.kind, a.used_blocks,
    a.used_blocks / e.blocks AS used_share,
    a.stored_tokens,
    a.wasted_tokens
FROM averaged a
JOIN engine e ON e.engine_id = a.engine_id
ORDER BY a.engine_id, a.time_ns, a.step, a.kv_group
