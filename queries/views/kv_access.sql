-- A block that a layer read or wrote for a request, and when.
--
-- Where tiles were recorded, a row a program, tile and block (observed); else kv_window spread over step_block
-- (derived); without windows, as on a CPU, the step's time spread over step_block, all layers in one row (derived). Ask
-- for few steps at a time.
--
-- needs: engine, forward, gpu_block_list, gpu_program, gpu_tile, gpu_write, kv_window, step_block, step_update,
--     tile_request, tile_step
-- column: process_id recorded | The worker (`process.process_id`).
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: layer derived | Layer; NULL: all, because no layer was timed.
-- column: head derived | KV head of this rank; NULL: all.
-- column: request derived | Request.
-- column: kv_group derived | KV cache group.
-- column: position derived | Index in the request's block table.
-- column: block_id derived | The block, as the block manager counts.
-- column: kind derived | What was done with the block.
-- column: start_ns [ns] derived | Not before: start of the layer's window, or when the program turned to the tile;
--     without either, when the forward pass was entered on the host.
-- column: end_ns [ns] derived | Not after: end of the layer's window, or when the tile had been used or its store
--     issued; without either, when the step's results were there (NULL if they never were).
-- column: observed derived | The access itself was observed; false: derived.

WITH listed AS (
    SELECT DISTINCT
        l.process_id, l.engine_id, l.step, q.request, l.row, l.first_token,
        l.first_token // e.block_size_tokens AS position,
        l.kernel_block * l.kernel_block_tokens // e.block_size_tokens AS block_id
    FROM gpu_block_list l JOIN tile_request q USING (process_id, step, row)
    JOIN engine e ON e.engine_id = l.engine_id
), reads AS (
    SELECT
        t.process_id, t.engine_id, t.step, p.layer, p.head, l.request, l.position, l.block_id,
        t.start_ns, t.k_ns,
        coalesce(t.v_start_ns, CASE WHEN t.v_ns IS NOT NULL THEN t.k_ns END) AS v_start_ns, t.v_ns
    FROM gpu_tile t
    JOIN gpu_program p USING (process_id, step, program)
    JOIN (SELECT DISTINCT process_id, step, row, request, position, block_id, first_token FROM listed) l
        ON
            l.process_id = t.process_id AND l.step = t.step AND l.row = p.row
            AND l.first_token >= t.tile * p.tile_tokens AND l.first_token < (t.tile + 1) * p.tile_tokens
), writes AS (
    SELECT w.*, l.request, l.position, w.slot // e.block_size_tokens AS block_id
    FROM gpu_write w JOIN engine e USING (engine_id)
    LEFT JOIN (SELECT DISTINCT process_id, step, request, position, block_id FROM listed) l
        ON l.process_id = w.process_id AND l.step = w.step AND l.block_id = w.slot // e.block_size_tokens
)
SELECT
    process_id, engine_id, step, layer, head, request, NULL::UTINYINT AS kv_group, position, block_id,
    unnest(['k_read', 'v_read'])::E_ACCESS_KIND AS kind,
    unnest([start_ns, v_start_ns]) AS start_ns, unnest([k_ns, v_ns]) AS end_ns, true AS observed
FROM reads
UNION ALL
SELECT
    process_id, engine_id, step, layer, NULL, request, NULL, position, block_id,
    unnest(['k_write', 'v_write'])::E_ACCESS_KIND, unnest([start_ns, coalesce(v_start_ns, k_ns)]),
    unnest([k_ns, v_ns]), true
FROM writes
UNION ALL
SELECT
    w.process_id, w.engine_id, w.step, w.layer, NULL, b.request, b.kv_group, b.position, b.block_id,
    w.kind::VARCHAR::E_ACCESS_KIND, w.start_ns, w.end_ns, false
FROM kv_window w ANTI JOIN tile_step t ON w.process_id = t.process_id AND w.step = t.step
JOIN step_block b ON w.engine_id = b.engine_id AND w.step = b.step
WHERE w.kind = 'attention' OR b.written
UNION ALL
SELECT
    f.process_id, f.engine_id, f.step, NULL, NULL, b.request, b.kv_group, b.position, b.block_id,
    unnest(CASE WHEN b.written THEN ['write', 'attention'] ELSE ['attention'] END)::E_ACCESS_KIND,
    f.start_ns, u.update_ns, false
FROM forward f
ANTI JOIN tile_step t ON f.process_id = t.process_id AND f.step = t.step
ANTI JOIN kv_window w ON f.process_id = w.process_id AND f.step = w.step
JOIN step_block b ON f.engine_id = b.engine_id AND f.step = b.step
LEFT JOIN step_update u ON u.engine_id = f.engine_id AND u.step = f.step
