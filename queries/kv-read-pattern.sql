-- Which KV blocks does a layer read when, in each forward pass?
--
-- One row per block that a program of attention reads (in imported patterns: a warp), in the order of its list. Times
-- count from the layer's first access in the pass; pass_ms says how far into the first pass shown that is. A pass in
-- which the layer reads no block has one row without one. From recorded tiles or imported patterns of one worker; one
-- KV head. Without a range of steps, the first five recorded passes.
--
-- group: KV access
-- figure: IPDPS'25 study of KV access, Figure 6b: read pattern over time in a layer.
-- needs: gpu_tile, gpu_program, tile_step
-- param: layer INTEGER = 0 | The layer.
-- param: head INTEGER = NULL | The KV head; NULL: the first one recorded.
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one; NULL: after the first five recorded ones.
-- param: process INTEGER = NULL | The worker (`process_id`); NULL: the first one with reads.
-- key: layer, head, step, request, block_id, k_start_ms, v_start_ms
-- column: process_id recorded | The worker.
-- column: layer recorded | The layer.
-- column: head recorded | KV head; NULL if the data do not tell heads apart.
-- column: pass derived | The forward pass, counted from 1 among those shown.
-- column: step recorded | Scheduler step.
-- column: pass_ms [ms] derived | From the layer's first access in the first pass shown to that in this one.
-- column: phase recorded | What the request's tokens were scheduled for; of a pass without reads, of the step, where it
--     is the same for all.
-- column: request recorded | The request.
-- column: program recorded | The program, or warp, whose list it is.
-- column: place derived | Place in its list, by time, from 1.
-- column: position derived | Index of the block in the request's block table.
-- column: block_id recorded | The block.
-- column: pool_blocks [blocks] recorded | Blocks that requests can use.
-- column: k_start_ms [ms] derived | When it turned to the block's K.
-- column: k_end_ms [ms] derived | When K had been used.
-- column: v_start_ms [ms] derived | When it turned to its V.
-- column: v_end_ms [ms] derived | When V had been used; NULL if that was not recorded.

WITH chosen AS (
    SELECT
        t.process_id, t.step, e.block_size_tokens AS size, e.blocks AS pool_blocks, t.engine_id, t.opened_ns,
        row_number() OVER (ORDER BY t.step) AS pass
    FROM tile_step t JOIN engine e USING (engine_id)
    WHERE
        t.process_id = coalesce($process, (SELECT min(process_id) FROM gpu_program))
        AND ($first_step IS NULL OR t.step >= $first_step) AND ($last_step IS NULL OR t.step <= $last_step)
    QUALIFY $last_step IS NOT NULL OR pass <= 5
), program AS (
    SELECT p.* FROM gpu_program p JOIN chosen USING (process_id, step)
    WHERE p.layer = $layer
    QUALIFY p.head IS NOT DISTINCT FROM coalesce($head, min(p.head) OVER ())
), begun AS (
    SELECT c.process_id, c.step, coalesce(min(a.start_ns), any_value(c.opened_ns)) AS begun_ns
    FROM chosen c LEFT JOIN (
        SELECT process_id, step, start_ns FROM program
        UNION ALL
        SELECT process_id, step, start_ns FROM gpu_write JOIN chosen USING (process_id, step) WHERE layer = $layer
    ) a USING (process_id, step)
    GROUP BY c.process_id, c.step
), listed AS (
    SELECT DISTINCT
        l.process_id, l.step, l.row, l.first_token, l.first_token // c.size AS position,
        l.kernel_block * l.kernel_block_tokens // c.size AS block_id
    FROM gpu_block_list l JOIN chosen c USING (process_id, step)
), read AS (
    SELECT DISTINCT
        p.process_id, p.step, p.head, p.program, n.request, l.position, l.block_id,
        t.start_ns, t.k_ns, coalesce(t.v_start_ns, CASE WHEN t.v_ns IS NOT NULL THEN t.k_ns END) AS v_start_ns, t.v_ns
    FROM gpu_tile t JOIN program p USING (process_id, step, program)
    JOIN listed l
        ON
            l.process_id = t.process_id AND l.step = t.step AND l.row = p.row
            AND l.first_token >= t.tile * p.tile_tokens AND l.first_token < (t.tile + 1) * p.tile_tokens
    LEFT JOIN tile_request n ON n.process_id = t.process_id AND n.step = t.step AND n.row = p.row
), whole_step AS (
    SELECT engine_id, step, CASE WHEN min(phase) = max(phase) THEN min(phase) END AS phase
    FROM step_request WHERE step IN (SELECT step FROM chosen) GROUP BY engine_id, step
)
SELECT
    c.process_id,
    $layer AS layer,
    r.head,
    c.pass,
    c.step,
    (g.begun_ns - min(g.begun_ns) OVER ()) / 1e6 AS pass_ms,
    coalesce(s.phase, CASE WHEN r.block_id IS NULL THEN w.phase END) AS phase,
    r.request,
    r.program,
    CASE
        WHEN r.program IS NOT NULL
            THEN row_number() OVER (PARTITION BY c.step, r.program ORDER BY r.start_ns, r.position)
    END AS place,
    r.position,
    r.block_id,
    c.pool_blocks,
    (r.start_ns - g.begun_ns) / 1e6 AS k_start_ms,
    (r.k_ns - g.begun_ns) / 1e6 AS k_end_ms,
    (r.v_start_ns - g.begun_ns) / 1e6 AS v_start_ms,
    (r.v_ns - g.begun_ns) / 1e6 AS v_end_ms
FROM chosen c JOIN begun g USING (process_id, step)
LEFT JOIN read r USING (process_id, step)
LEFT JOIN step_request s ON s.engine_id = c.engine_id AND s.step = c.step AND s.request = r.request
LEFT JOIN whole_step w ON w.engine_id = c.engine_id AND w.step = c.step
ORDER BY c.pass, r.program, r.start_ns, r.position
