-- What bandwidth do a layer's KV reads and writes achieve?
--
-- One row per worker, layer, kind and batch, over its GPU windows that were observed. Bytes are derived: attention
-- reads the K and V of every token of the request up to its last one in this step, a KV write stores those of the
-- tokens scheduled, in each layer; what a token takes follows from the layer's KV tensor (`kv_layer`: elements times
-- bytes, over the slots). So the last block counts as far as it is filled. A block that several requests share counts
-- once each, though the GPU may read it from its L2 cache; the queries of a long prompt read the same KV several times,
-- which counts once. A window also holds attention's arithmetic, which bounds prefill, and a layer with a sliding
-- window reads less than is counted here.
--
-- group: KV access
-- figure: KV access study (IPDPS'25): achieved bandwidth of KV reads and writes.
-- needs: kv_window, kv_layer, step_request, engine
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: layer, kind, batch, windows, bytes, gb_per_s, p95_gb_per_s
-- column: process_id recorded | The worker.
-- column: layer recorded | Layer, as in kv_layer.
-- column: kind derived | read (the window of attention) or write.
-- column: batch derived | What the step computed: prefill, decode or mixed.
-- column: windows recorded | Windows.
-- column: mean_blocks [blocks] derived | Blocks read or written in a window (mean).
-- column: bytes [bytes] derived | Bytes read or written on this worker, in all windows.
-- column: mean_window_us [us] recorded | Mean duration of a window.
-- column: gb_per_s [GB/s] derived | All bytes over all windows' time.
-- column: p50_gb_per_s [GB/s] derived | Median of the windows' own rates.
-- column: p95_gb_per_s [GB/s] derived | 95th percentile.

WITH batch AS (
    SELECT
        r.engine_id, r.step,
        CASE
            WHEN bool_and(phase = 'decode') THEN 'decode' WHEN bool_or(phase = 'decode') THEN 'mixed' ELSE 'prefill'
        END
            AS batch,
        sum(scheduled_tokens) AS written_tokens,
        sum(computed_tokens + scheduled_tokens) AS read_tokens,
        sum(ceil((computed_tokens + scheduled_tokens) / e.block_size_tokens)) AS read_blocks,
        sum(ceil((computed_tokens + scheduled_tokens) / e.block_size_tokens) - computed_tokens // e.block_size_tokens)
            AS written_blocks
    FROM step_request r JOIN engine e USING (engine_id)
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
    GROUP BY r.engine_id, r.step
), tensor AS (
    SELECT
        process_id, layer, list_product(shape::BIGINT[]) * CASE
            WHEN dtype IN ('float32', 'float') THEN 4
            WHEN dtype IN ('bfloat16', 'float16', 'half') THEN 2
            WHEN dtype LIKE 'float8%' OR dtype IN ('uint8', 'int8') THEN 1
        END AS bytes
    FROM kv_layer
), access AS (
    SELECT
        w.process_id, w.layer, CASE w.kind WHEN 'write' THEN 'write' ELSE 'read' END AS kind, b.batch,
        w.end_ns - w.start_ns AS ns,
        CASE w.kind WHEN 'write' THEN written_blocks ELSE read_blocks END AS blocks,
        CASE w.kind WHEN 'write' THEN written_tokens ELSE read_tokens END
        * (t.bytes / ((e.blocks + 1) * e.block_size_tokens)) AS bytes
    FROM kv_window w
    JOIN batch b USING (engine_id, step)
    JOIN engine e USING (engine_id)
    JOIN tensor t ON t.process_id = w.process_id AND t.layer = w.layer
    WHERE w.observed IS NOT false
)
SELECT
    process_id,
    layer,
    kind,
    batch,
    count(*) AS windows,
    avg(blocks) AS mean_blocks,
    sum(bytes)::BIGINT AS bytes,
    avg(ns) / 1e3 AS mean_window_us,
    sum(bytes) / nullif(sum(ns), 0) AS gb_per_s,
    quantile_cont(bytes / nullif(ns, 0), 0.5) AS p50_gb_per_s,
    quantile_cont(bytes / nullif(ns, 0), 0.95) AS p95_gb_per_s
FROM access
GROUP BY process_id, layer, kind, batch
ORDER BY process_id, layer, kind, batch
