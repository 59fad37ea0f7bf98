-- A block that a request had in its block table in a step in which it ran.
--
-- The block tables are put together from their recorded changes. Exact for models with one KV cache group; a sliding
-- window reads fewer of the blocks.
--
-- needs: block_table, engine, step_request
-- column: engine_id recorded | The engine (`process.process_id`).
-- column: step recorded | Scheduler step.
-- column: request recorded | Request.
-- column: kv_group derived | KV cache group.
-- column: position derived | Index in the request's block table.
-- column: block_id derived | The block there.
-- column: written derived | Holds some of the tokens computed in this step.

WITH tables AS (
    SELECT
        engine_id, request, step AS since,
        lead(step) OVER (PARTITION BY engine_id, request ORDER BY step) AS until
    FROM (SELECT DISTINCT engine_id, request, step FROM block_table WHERE op = 'set')
), entries AS (
    SELECT t.*, tables.until FROM block_table t ASOF JOIN tables
        ON t.engine_id = tables.engine_id AND t.request = tables.request AND t.step >= tables.since
)
SELECT
    r.engine_id, r.step, r.request, e.kv_group, e.position, e.block_id,
    (e.position::BIGINT + 1) * g.block_size_tokens > r.computed_tokens AS written
FROM step_request r
JOIN entries e
    ON
        e.engine_id = r.engine_id AND e.request = r.request
        AND e.step <= r.step AND (e.until IS NULL OR r.step < e.until)
JOIN engine g ON g.engine_id = r.engine_id
WHERE e.position * g.block_size_tokens < r.computed_tokens + r.scheduled_tokens
