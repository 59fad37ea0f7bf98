-- Which requests' KV could a connector not load, and what became of them?
--
-- One row per request and load that failed, in order of its end. A load fails before anything moves, as a handshake with
-- an engine that does not answer, or in one of its transfers. vLLM then ends the request with an error, its default, or
-- computes what it lacks (`kv_load_failure_policy`). Loads that a step waits for have no row, unless their connector
-- tells of transfers.
--
-- group: Offload
-- needs: pin, request, transfer, transfer_block
-- words: error, errors, failure, handshake, timeout, nixl, connector, load, recompute, policy
-- key: request, external_id, blocks, load_ms, failed_transfers, outcome
-- worst: load_ms
-- column: engine_id recorded | The engine that loaded.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: blocks [blocks] derived | Blocks that it was given to load into.
-- column: start_ns [ns] recorded | When it was given them, UNIX time.
-- column: end_ns [ns] recorded | When the scheduler knew that the load had failed, UNIX time.
-- column: load_ms [ms] derived | Between the two.
-- column: transfers [transfers] derived | Transfers that had begun, those of all workers as one; 0: it failed before.
-- column: failed_transfers [transfers] derived | Of these, those that failed.
-- column: finish_reason recorded | How the request ended; NULL if it had not.
-- column: outcome derived | ended: the request ended with an error. computed: it went on without.

WITH pinned AS (
    SELECT engine_id, request, count(DISTINCT block_id) AS blocks, min(start_ns) AS start_ns, end_ns
    FROM pin
    WHERE cause = 'async_load' AND end_reason = 'failed' AND request IS NOT NULL
    GROUP BY engine_id, request, end_ns
), moved AS (
    SELECT
        b.engine_id, b.request, min(t.submitted_ns) AS submitted_ns, max(t.finished_ns) AS finished_ns,
        bool_or(NOT t.success) AS failed, count(DISTINCT b.gpu_block_id) AS blocks
    FROM transfer t
    JOIN transfer_block b ON b.engine_id = t.engine_id AND b.transfer = t.transfer
    WHERE t.direction = 'load' AND b.request IS NOT NULL
    GROUP BY b.engine_id, b.request, t.transfer
), failed AS (
    FROM pinned
    UNION ALL
    -- What is known from transfers alone.
    SELECT engine_id, request, sum(blocks)::BIGINT, min(submitted_ns), max(finished_ns)
    FROM moved m
    WHERE failed AND NOT EXISTS (FROM pinned p WHERE p.engine_id = m.engine_id AND p.request = m.request)
    GROUP BY engine_id, request
)
SELECT
    f.engine_id,
    f.request,
    any_value(r.external_id) AS external_id,
    any_value(f.blocks) AS blocks,
    f.start_ns,
    f.end_ns,
    (f.end_ns - f.start_ns) / 1e6 AS load_ms,
    count(m.submitted_ns) AS transfers,
    count(m.submitted_ns) FILTER (m.failed) AS failed_transfers,
    any_value(r.finish_reason) AS finish_reason,
    CASE WHEN any_value(r.finish_reason) = 'error' THEN 'ended' ELSE 'computed' END AS outcome
FROM failed f
JOIN request r ON r.request = f.request
LEFT JOIN moved m
    ON
        m.engine_id = f.engine_id AND m.request = f.request
        AND m.submitted_ns BETWEEN f.start_ns AND f.end_ns
GROUP BY f.engine_id, f.request, f.start_ns, f.end_ns
ORDER BY f.end_ns, f.request
