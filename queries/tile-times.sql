-- How long do programs wait for a tile's K, and how much later is its V used?
--
-- One row a worker and layer, over the tiles that the trace holds (`--kv-level tile`). Loads are pipelined, so to_k is
-- what a program still waits and computes from the tile before to the scores with this one's K; k_to_v is from there
-- until its V is multiplied. Times come in ticks of 32 ns. increasing is the share of programs that read a later tile
-- after an earlier one throughout, as a causal attention kernel should.
--
-- group: KV access
-- needs: gpu_tile, gpu_program
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- column: process_id recorded | The worker.
-- column: layer recorded | Layer, as in kv_layer.
-- column: programs recorded | Attention programs.
-- column: tiles recorded | Tiles they read.
-- column: tokens_read [tokens] derived | Tokens of K and V they read, a head each.
-- column: p50_to_k [ns] derived | Median time to a tile's K.
-- column: p99_to_k [ns] derived | Its 99th percentile.
-- column: p50_k_to_v [ns] derived | Median time from a tile's K to its V.
-- column: p99_k_to_v [ns] derived | Its 99th percentile.
-- column: increasing [ratio] derived | Programs whose tiles' K were used in increasing order.

WITH tile AS (
    SELECT t.*, p.layer, p.tile_tokens,
        lag(t.k_ns) OVER (PARTITION BY t.process_id, t.step, t.program ORDER BY t.tile) AS k_before_ns
    FROM gpu_tile t JOIN gpu_program p USING (process_id, step, program)
    WHERE ($first_step IS NULL OR t.step >= $first_step) AND ($last_step IS NULL OR t.step <= $last_step)
), program AS (
    SELECT process_id, step, program, bool_and(coalesce(k_ns >= k_before_ns, true)) AS increasing
    FROM tile GROUP BY ALL
)
SELECT
    process_id,
    layer,
    count(DISTINCT (step, program)) AS programs,
    count(*) AS tiles,
    sum(tile_tokens)::BIGINT AS tokens_read,
    quantile_cont(k_ns - start_ns, 0.5) AS p50_to_k,
    quantile_cont(k_ns - start_ns, 0.99) AS p99_to_k,
    quantile_cont(v_ns - k_ns, 0.5) AS p50_k_to_v,
    quantile_cont(v_ns - k_ns, 0.99) AS p99_k_to_v,
    count(DISTINCT (step, program)) FILTER (increasing) / count(DISTINCT (step, program)) AS increasing
FROM tile JOIN program USING (process_id, step, program)
GROUP BY process_id, layer
ORDER BY process_id, layer
