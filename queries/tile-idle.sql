-- While a layer's attention runs, how much of the time is a block being read?
--
-- One row per worker, layer and phase of the request, over the tiles that the trace holds (`--kv-level tile`). Of each
-- tile of a request in a layer and step: the time in which at least one program (of any head and any of the request's
-- queries) reads it, from when it turns to the tile until its V went into the output, against the time from the layer's
-- first program to the end of its last one. A tile is one block or several. It refines query block-idle, which counts a
-- block as touched for the whole window; a tile that another request shares counts for each.
--
-- group: KV access
-- figure: KV access study (IPDPS'25): idle time of blocks within a pass.
-- needs: gpu_program, gpu_tile
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: layer, phase, passes, mean_pass_us, mean_read_us, idle_share
-- column: process_id recorded | The worker.
-- column: layer recorded | Layer, as in kv_layer.
-- column: phase recorded | What the request's tokens were for.
-- column: passes recorded | Steps.
-- column: tiles recorded | Tiles of requests, each once a step.
-- column: reads recorded | Reads of them by programs.
-- column: mean_pass_us [us] derived | Time from the layer's first program to the end of its last one (mean over tiles).
-- column: mean_read_us [us] derived | Time in which a tile is being read (mean).
-- column: idle_share [ratio] derived | Share of the layer's attention in which it is not.

WITH program AS (
    SELECT
        process_id, step, program, layer, row, start_ns, end_ns,
        dense_rank() OVER (ORDER BY process_id, step, layer, row) AS id
    FROM gpu_program
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
), pass AS (
    SELECT process_id, step, layer, max(end_ns) - min(start_ns) AS ns FROM program GROUP BY ALL
), read AS (
    SELECT
        p.id, t.start_ns, t.v_ns,
        max(t.v_ns) OVER (
            PARTITION BY p.id, t.tile ORDER BY t.start_ns, t.v_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS read_until_ns
    FROM gpu_tile t JOIN program p USING (process_id, step, program)
), request AS (
    SELECT
        id, count(*) AS reads, count_if(read_until_ns IS NULL) AS tiles,
        sum(greatest(0, v_ns - greatest(start_ns, coalesce(read_until_ns, start_ns)))) AS read_ns
    FROM read GROUP BY id
), placed AS (
    SELECT q.*, p.process_id, p.step, p.layer, p.row
    FROM request q JOIN (SELECT DISTINCT id, process_id, step, layer, row FROM program) p USING (id)
)
SELECT
    q.process_id,
    q.layer,
    r.phase,
    count(DISTINCT q.step) AS passes,
    sum(q.tiles)::BIGINT AS tiles,
    sum(q.reads)::BIGINT AS reads,
    sum(q.tiles * p.ns) / sum(q.tiles) / 1e3 AS mean_pass_us,
    sum(q.read_ns) / sum(q.tiles) / 1e3 AS mean_read_us,
    1 - sum(q.read_ns) / nullif(sum(q.tiles * p.ns), 0) AS idle_share
FROM placed q
JOIN pass p USING (process_id, step, layer)
LEFT JOIN tile_request r ON r.process_id = q.process_id AND r.step = q.step AND r.row = q.row
GROUP BY q.process_id, q.layer, r.phase
ORDER BY q.process_id, q.layer, r.phase
