-- How long after a block's K is its V read or written, in the same program and layer?
--
-- One row per worker, layer, phase and kind, over the tiles that the trace holds (`--kv-level tile`). A read's lag runs
-- from the time the scores with a tile's K were computed to the time its V went into the output. Both are in one
-- program, which handles one request, KV head and layer; a tile is one block or several. A write's lag runs from
-- issuing a token's K store to issuing its V store. Times come in ticks of 32 ns, so short lags are coarse, and zero
-- means less than a tick.
--
-- group: KV access
-- figure: KV access study (IPDPS'25): lag between the reads of a block's K and of its V.
-- needs: gpu_program, gpu_tile
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: layer, phase, kind, accesses, p50_lag_ns, p95_lag_ns
-- column: process_id recorded | The worker.
-- column: layer recorded | Layer, as in kv_layer.
-- column: phase recorded | What the request's tokens were for; NULL for writes, whose programs do not name their request.
-- column: kind derived | read or write.
-- column: accesses recorded | Tiles read, or programs that stored a token.
-- column: mean_lag_ns [ns] derived | Mean lag.
-- column: p50_lag_ns [ns] derived | Median.
-- column: p95_lag_ns [ns] derived | 95th percentile.
-- column: max_lag_ns [ns] derived | Longest.

WITH program AS (
    SELECT p.process_id, p.step, p.program, p.layer, r.phase
    FROM gpu_program p LEFT JOIN tile_request r USING (process_id, step, row)
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
), lag AS (
    SELECT process_id, layer, phase, 'read' AS kind, t.v_ns - t.k_ns AS ns
    FROM gpu_tile t JOIN program USING (process_id, step, program)
    UNION ALL
    SELECT process_id, layer, NULL, 'write', v_ns - k_ns FROM gpu_write
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
)
SELECT
    process_id,
    layer,
    phase,
    kind,
    count(*) AS accesses,
    avg(ns) AS mean_lag_ns,
    quantile_disc(ns, 0.5)::DOUBLE AS p50_lag_ns,
    quantile_disc(ns, 0.95)::DOUBLE AS p95_lag_ns,
    max(ns)::DOUBLE AS max_lag_ns
FROM lag
GROUP BY process_id, layer, phase, kind
ORDER BY process_id, layer, kind, phase
