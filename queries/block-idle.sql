-- How long does each block's KV stay untouched, within a forward pass and between passes?
--
-- One row per worker and layer, and one with the layer NULL for all layers together. Time counts per block and request:
-- from the first pass that uses the block to the last, without preempted time; a shared block counts once per request.
-- A pass runs from the start of the first layer's window to the end of the last layer's. In each layer, a request's
-- pass touches all its blocks for as long as attention takes, and the blocks it writes also for as long as the KV write
-- takes. The layer's KV is idle while other layers and the rest of the model compute. Between two passes of a request
-- its blocks are idle, even while other requests' passes run. Windows are observed, or derived where a layer has no
-- timestamps in CUDA graphs (`kv_window.observed`). Which blocks they touch is derived. A window is longer than its
-- accesses to one block: query tile-idle says by how much.
--
-- Where passes are missing in the trace (tiles of every Nth step), the time between two passes is known only if both
-- are there. Passes whose next one is missing count only in passes and idle_within_share.
--
-- Without GPU windows (`--kv-level host`) a pass is the model runner's call on the host (`forward`). Then only the time
-- between passes is known. On a GPU it is approximate, because the call returns before the GPU is done.
--
-- group: KV access
-- figure: KV access study (IPDPS'25): idle time of blocks within a pass and between passes.
-- needs: step_request, engine, forward
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: basis, layer, passes, idle_share, p50_gap_ms, p99_gap_ms
-- column: process_id recorded | The worker.
-- column: basis derived | window: GPU windows; forward: the host's calls.
-- column: layer recorded | Layer, as in kv_window; NULL: any.
-- column: passes derived | Passes in the trace.
-- column: held_block_seconds [block-s] derived | Time that blocks are held, all blocks added up; NULL, as
--     all but idle_within_share, if no two passes follow each other.
-- column: touched_block_seconds [block-s] derived | Of it, time in windows that touch them; NULL without windows.
-- column: idle_within_block_seconds [block-s] derived | Of it, within a pass of theirs and not touched; NULL without windows.
-- column: idle_between_block_seconds [block-s] derived | Of it, between passes of theirs.
-- column: idle_within_share [ratio] derived | idle_within_block_seconds over the time of their passes.
-- column: idle_between_share [ratio] derived | idle_between_block_seconds over held_block_seconds.
-- column: idle_share [ratio] derived | All idle time over held_block_seconds; NULL without windows.
-- column: p50_gap_ms [ms] derived | Time between two passes of a request, median.
-- column: p99_gap_ms [ms] derived | 99th percentile.
-- column: max_gap_ms [ms] derived | Longest.

WITH pass AS (
    SELECT process_id, engine_id, step, 'window' AS basis, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM kv_window
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
    GROUP BY ALL
    UNION ALL
    SELECT process_id, engine_id, step, 'forward', start_ns, end_ns FROM forward
    WHERE
        tokens > 0 AND process_id NOT IN (SELECT DISTINCT process_id FROM kv_window)
        AND ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
), share AS (
    SELECT
        r.engine_id, r.step, r.request,
        ceil((computed_tokens + scheduled_tokens) / e.block_size_tokens)::BIGINT AS blocks,
        (
            ceil((computed_tokens + scheduled_tokens) / e.block_size_tokens) - computed_tokens // e.block_size_tokens
        )::BIGINT
            AS written_blocks
    FROM step_request r JOIN engine e USING (engine_id)
    WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
), resumed AS (
    SELECT DISTINCT engine_id, request, step FROM request_event WHERE op = 'resume'
), worker AS (
    SELECT process_id, engine_id, basis, count(*) AS passes FROM pass GROUP BY ALL
), turn AS (
    SELECT
        w.process_id, s.step, s.blocks, s.written_blocks, p.end_ns - p.start_ns AS pass_ns,
        lead(p.start_ns) OVER life - p.end_ns AS next_ns,
        coalesce(lead(e.request IS NOT NULL) OVER life, true) AS is_last
    FROM share s
    JOIN worker w USING (engine_id)
    LEFT JOIN pass p ON p.process_id = w.process_id AND p.step = s.step
    LEFT JOIN resumed e ON e.engine_id = s.engine_id AND e.request = s.request AND e.step = s.step
    WINDOW life AS (PARTITION BY w.process_id, s.request ORDER BY s.step)
), known AS (
    SELECT *, CASE WHEN NOT is_last THEN next_ns END AS gap_ns, is_last OR next_ns IS NOT NULL AS followed
    FROM turn WHERE pass_ns IS NOT NULL
), batch AS (
    SELECT
        process_id, step, sum(blocks) AS blocks, sum(written_blocks) AS written_blocks,
        coalesce(sum(blocks) FILTER (followed), 0) AS followed_blocks,
        coalesce(sum(written_blocks) FILTER (followed), 0) AS followed_written_blocks
    FROM known GROUP BY ALL
), span AS (
    SELECT
        process_id,
        sum(blocks * pass_ns) AS pass_ns,
        coalesce(sum(blocks * pass_ns) FILTER (followed), 0) AS followed_ns,
        sum(blocks * gap_ns) AS between_ns, quantile_cont(gap_ns, [0.5, 0.99]) AS gaps, max(gap_ns) AS max_gap_ns
    FROM known GROUP BY ALL
), touched AS (
    SELECT
        process_id, layer,
        sum((w.end_ns - w.start_ns) * CASE w.kind WHEN 'write' THEN b.written_blocks ELSE b.blocks END) AS ns,
        sum(
            (w.end_ns - w.start_ns)
            * CASE w.kind WHEN 'write' THEN b.followed_written_blocks ELSE b.followed_blocks END
        ) AS followed_ns
    FROM kv_window w JOIN batch b USING (process_id, step)
    GROUP BY process_id, layer
), whole AS (
    SELECT * FROM touched
    UNION ALL
    SELECT process_id, NULL, sum(ns), sum(followed_ns) FROM touched GROUP BY process_id
)
SELECT
    w.process_id,
    w.basis,
    t.layer,
    w.passes,
    (s.followed_ns + s.between_ns) / 1e9 AS held_block_seconds,
    CASE WHEN s.between_ns IS NOT NULL THEN t.followed_ns / 1e9 END AS touched_block_seconds,
    CASE WHEN s.between_ns IS NOT NULL THEN (s.followed_ns - t.followed_ns) / 1e9 END AS idle_within_block_seconds,
    s.between_ns / 1e9 AS idle_between_block_seconds,
    1 - t.ns / nullif(s.pass_ns, 0) AS idle_within_share,
    s.between_ns / nullif(s.followed_ns + s.between_ns, 0) AS idle_between_share,
    1 - t.followed_ns / nullif(s.followed_ns + s.between_ns, 0) AS idle_share,
    s.gaps[1] / 1e6 AS p50_gap_ms,
    s.gaps[2] / 1e6 AS p99_gap_ms,
    s.max_gap_ns / 1e6 AS max_gap_ms
FROM worker w
JOIN span s USING (process_id)
LEFT JOIN whole t USING (process_id)
ORDER BY w.process_id, t.layer NULLS FIRST
