-- How long do programs wait for a tile's K, and how much later is its V used?
--
-- One row per worker and layer, over the tiles that the trace holds (`--kv-level tile`). Loads are pipelined: to_k is
-- the time that a program waits and computes from the previous tile to the scores with this tile's K; k_to_v is from
-- there until its V is multiplied. Times come in ticks of 32 ns. increasing is the share of programs that read every
-- tile after all earlier ones, as a causal attention kernel should.
--
-- group: KV access
-- needs: gpu_tile, gpu_program
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: layer, programs, tiles, p50_to_k, p50_k_to_v, increasing
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

WITH program AS (
    SELECT process_id, step, program, layer, tile_tokens, row_number() OVER (ORDER BY process_id, step, program) AS id
    FROM gpu_program
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
), tile AS (
    SELECT
        p.id, p.process_id, p.layer, p.tile_tokens, t.k_ns - t.start_ns AS to_k, t.v_ns - t.k_ns AS k_to_v,
        t.k_ns < lag(t.k_ns) OVER (PARTITION BY p.id ORDER BY t.tile) AS back
    FROM gpu_tile t JOIN program p USING (process_id, step, program)
), read AS (
    SELECT id, process_id, layer, bool_or(coalesce(back, false)) AS back FROM tile GROUP BY ALL
), programs AS (
    SELECT process_id, layer, count(*) AS programs, count_if(NOT back) / count(*) AS increasing FROM read GROUP BY ALL
), times AS (
    SELECT
        process_id, layer, count(*) AS tiles, sum(tile_tokens)::BIGINT AS tokens_read,
        quantile_cont(to_k, [0.5, 0.99]) AS to_k, quantile_cont(k_to_v, [0.5, 0.99]) AS k_to_v
    FROM tile GROUP BY ALL
)
SELECT
    process_id,
    layer,
    p.programs,
    t.tiles,
    t.tokens_read,
    t.to_k[1] AS p50_to_k,
    t.to_k[2] AS p99_to_k,
    t.k_to_v[1] AS p50_k_to_v,
    t.k_to_v[2] AS p99_k_to_v,
    p.increasing
FROM times t JOIN programs p USING (process_id, layer)
ORDER BY process_id, layer
