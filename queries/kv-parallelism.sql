-- How many accesses to KV blocks run at the same time, within a request and across requests?
--
-- One row per worker and layer, over its attention. What a layer's window covers is derived from the scheduler's
-- records: one kernel reads all blocks of all requests of the batch, in which order and how many at once cannot be seen
-- from outside (`--kv-level layer`; without GPU windows, a row per engine with the layer NULL). Where tiles were
-- recorded the accesses are observed: a program reads one tile at a time, so the accesses in flight are the programs in
-- flight, each of one request, KV head and layer. Several heads that read the same block count as several. The mean is
-- over the time from the first program's start to the last one's end: of the layer in the step, and of the request in
-- it.
--
-- group: KV access
-- figure: KV access study (IPDPS'25): parallelism of accesses within and across requests.
-- needs: step_request, engine
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: layer, passes, mean_requests, mean_blocks, max_blocks, mean_active_requests
-- column: process_id recorded | The worker; without windows, the engine.
-- column: layer recorded | Layer, as in kv_window; NULL without windows.
-- column: passes derived | Attention windows; without windows, steps.
-- column: mean_requests [requests] derived | Requests a window (mean).
-- column: mean_blocks [blocks] derived | Blocks that a window covers (mean); a shared block counts once a request.
-- column: max_blocks [blocks] derived | Most.
-- column: mean_request_blocks [blocks] derived | Blocks of one request in it (mean).
-- column: max_request_blocks [blocks] derived | Most.
-- column: observed_passes recorded | Windows whose programs are in the trace; 0 without tiles, and NULL in what follows.
-- column: mean_accesses [accesses] derived | Tiles being read at a time (mean).
-- column: max_accesses [accesses] derived | Most.
-- column: mean_request_accesses [accesses] derived | Of one request, while any of its programs runs (mean).
-- column: max_request_accesses [accesses] derived | Most.
-- column: mean_active_requests [requests] derived | Requests of which a tile is being read, at a time (mean).
-- column: max_active_requests [requests] derived | Most.

WITH batch AS (
    SELECT
        r.engine_id, r.step, count(*) AS requests,
        sum(ceil((r.computed_tokens + r.scheduled_tokens) / e.block_size_tokens)) AS blocks,
        max(ceil((r.computed_tokens + r.scheduled_tokens) / e.block_size_tokens)) AS most
    FROM step_request r JOIN engine e USING (engine_id)
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
    GROUP BY ALL
), covered AS (
    SELECT w.process_id, w.layer, b.* FROM kv_window w JOIN batch b USING (engine_id, step) WHERE w.kind = 'attention'
    UNION ALL
    SELECT engine_id, NULL, * FROM batch
    WHERE engine_id NOT IN (
        SELECT DISTINCT engine_id FROM kv_window WHERE engine_id IS NOT NULL
        UNION
        SELECT DISTINCT engine_id FROM tile_step WHERE engine_id IS NOT NULL
    )
), windows AS (
    SELECT
        process_id, layer, count(*) AS passes, avg(requests) AS mean_requests, avg(blocks) AS mean_blocks,
        max(blocks)::BIGINT AS max_blocks, sum(blocks) / sum(requests) AS mean_request_blocks,
        max(most)::BIGINT AS max_request_blocks
    FROM covered GROUP BY ALL
), program AS (
    SELECT process_id, step, layer, row, start_ns, end_ns FROM gpu_program
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
), request AS (
    SELECT
        process_id, step, layer, row, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        sum(end_ns - start_ns) AS access_ns
    FROM program GROUP BY ALL
), pass AS (
    SELECT
        process_id, step, layer, max(end_ns) - min(start_ns) AS ns, sum(access_ns) AS access_ns,
        sum(end_ns - start_ns) AS request_ns
    FROM request GROUP BY ALL
), means AS (
    SELECT
        process_id, layer, count(*) AS passes, sum(access_ns) / sum(ns) AS accesses,
        sum(access_ns) / sum(request_ns) AS request_accesses, sum(request_ns) / sum(ns) AS active
    FROM pass GROUP BY ALL
), in_flight AS (
    -- What ends at a moment makes room for what begins at it.
    SELECT process_id, layer, max(accesses)::BIGINT AS accesses, max(request_accesses)::BIGINT AS request_accesses
    FROM (
        SELECT
            process_id, layer,
            sum(change)
                OVER (PARTITION BY process_id, step, layer ORDER BY ns, change ROWS UNBOUNDED PRECEDING)
                AS accesses,
            sum(change) OVER (PARTITION BY process_id, step, layer, row ORDER BY ns, change ROWS UNBOUNDED PRECEDING)
                AS request_accesses
        FROM (SELECT *, unnest([start_ns, end_ns]) AS ns, unnest([1, -1]) AS change FROM program)
    ) GROUP BY ALL
), active AS (
    SELECT process_id, layer, max(active)::BIGINT AS active
    FROM (
        SELECT
            process_id, layer,
            sum(change)
                OVER (PARTITION BY process_id, step, layer ORDER BY ns, change ROWS UNBOUNDED PRECEDING)
                AS active
        FROM (SELECT *, unnest([start_ns, end_ns]) AS ns, unnest([1, -1]) AS change FROM request)
    ) GROUP BY ALL
)
SELECT
    process_id,
    layer,
    w.passes,
    w.mean_requests,
    w.mean_blocks,
    w.max_blocks,
    w.mean_request_blocks,
    w.max_request_blocks,
    coalesce(m.passes, 0) AS observed_passes,
    m.accesses AS mean_accesses,
    f.accesses AS max_accesses,
    m.request_accesses AS mean_request_accesses,
    f.request_accesses AS max_request_accesses,
    m.active AS mean_active_requests,
    a.active AS max_active_requests
FROM windows w
FULL JOIN means m USING (process_id, layer)
LEFT JOIN in_flight f USING (process_id, layer)
LEFT JOIN active a USING (process_id, layer)
ORDER BY process_id, layer
