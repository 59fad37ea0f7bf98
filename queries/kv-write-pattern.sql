-- Which KV blocks does a layer write when, in each forward pass?
--
-- One row per forward pass, request and block: from the first token stored in the block to the last. Times count from
-- the layer's first access in the pass; pass_ms says how far into the first pass shown that is. From recorded tiles or
-- imported patterns of one worker. Without a range of steps, the first five recorded passes.
--
-- group: KV access
-- figure: IPDPS'25 study of KV access, Figure 6a: write pattern over time in a layer.
-- needs: gpu_write, tile_step
-- param: layer INTEGER = 0 | The layer.
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one; NULL: after the first five recorded ones.
-- param: process INTEGER = NULL | The worker (`process_id`); NULL: the first one with writes.
-- key: layer, step, phase, request, block_id, tokens, start_ms
-- column: process_id recorded | The worker.
-- column: layer recorded | The layer.
-- column: pass derived | The forward pass, counted from 1 among those shown.
-- column: step recorded | Scheduler step.
-- column: pass_ms [ms] derived | From the layer's first access in the first pass shown to that in this one.
-- column: phase recorded | What the request's tokens were scheduled for; NULL if unknown.
-- column: request recorded | The request; NULL if it cannot be told.
-- column: position derived | Index of the block in the request's block table.
-- column: block_id recorded | The block.
-- column: pool_blocks [blocks] recorded | Blocks that requests can use.
-- column: tokens [tokens] derived | Tokens whose K and V were stored in the block.
-- column: start_ms [ms] derived | Begin of the first store into the block.
-- column: end_ms [ms] derived | End of the last.

WITH chosen AS (
    SELECT
        t.process_id, t.step, e.block_size_tokens AS size, e.blocks AS pool_blocks, t.engine_id,
        row_number() OVER (ORDER BY t.step) AS pass
    FROM tile_step t JOIN engine e USING (engine_id)
    WHERE
        t.process_id = coalesce($process, (SELECT min(process_id) FROM gpu_write))
        AND ($first_step IS NULL OR t.step >= $first_step) AND ($last_step IS NULL OR t.step <= $last_step)
    QUALIFY $last_step IS NOT NULL OR pass <= 5
), written AS (
    SELECT c.*, w.slot // c.size AS block_id, w.start_ns, w.v_ns AS end_ns
    FROM gpu_write w JOIN chosen c USING (process_id, step)
    WHERE w.layer = $layer
), begun AS (
    SELECT step, min(start_ns) AS begun_ns
    FROM (
        SELECT step, start_ns FROM written
        UNION ALL
        SELECT p.step, p.start_ns FROM gpu_program p JOIN chosen USING (process_id, step) WHERE p.layer = $layer
    )
    GROUP BY step
), listed AS (
    SELECT DISTINCT
        l.process_id, l.step, l.row, l.first_token // c.size AS position,
        l.kernel_block * l.kernel_block_tokens // c.size AS block_id
    FROM gpu_block_list l JOIN chosen c USING (process_id, step)
), owner AS (
    SELECT l.step, l.block_id, min(l.position) AS position, min(r.request) AS request
    FROM listed l JOIN tile_request r USING (process_id, step, row)
    GROUP BY l.step, l.block_id
)
SELECT
    w.process_id,
    $layer AS layer,
    w.pass,
    w.step,
    (g.begun_ns - min(g.begun_ns) OVER ()) / 1e6 AS pass_ms,
    s.phase,
    o.request,
    o.position,
    w.block_id,
    w.pool_blocks,
    count(*) AS tokens,
    (min(w.start_ns) - g.begun_ns) / 1e6 AS start_ms,
    (max(w.end_ns) - g.begun_ns) / 1e6 AS end_ms
FROM written w JOIN begun g USING (step)
LEFT JOIN owner o ON o.step = w.step AND o.block_id = w.block_id
LEFT JOIN step_request s ON s.engine_id = w.engine_id AND s.step = w.step AND s.request = o.request
GROUP BY w.process_id, w.pass, w.step, g.begun_ns, s.phase, o.request, o.position, w.block_id, w.pool_blocks
ORDER BY w.pass, start_ms, o.request, o.position, w.block_id
