-- What moved between the GPU and other tiers, how fast, and how long did it wait?
--
-- One row per engine, connector, direction and pair of tiers, over all its workers. Bandwidth is bytes over the time
-- the copy took: on the GPU, by CUDA events, where there are any; else as the connector reports it; else from its start
-- to its end on the host, which for an asynchronous copy includes the wait for the next poll. `timed_by` says which;
-- each row has one kind, so a mixture makes several rows. Quantiles are over transfers, mean bandwidth is all bytes
-- over all time.
--
-- Queueing is the time from submission to the start on the host. Where the start cannot be seen, it is the time to the
-- end less the copy's own time. The worker notices the end with its next poll, so with asynchronous copies queueing
-- includes up to a step of polling.
--
-- group: Offload
-- needs: transfer_submit
-- key: direction, from_tier, to_tier, transfers, bytes, mean_gb_per_s, p99_total_ms
-- column: engine_id recorded | The engine.
-- column: connector recorded | The connector's class.
-- column: direction recorded | store: away from the GPU's side; load: towards it.
-- column: from_tier recorded | Where the KV was.
-- column: to_tier recorded | Where it was copied to.
-- column: timed_by derived | device, reported, host; or none, when no end is known.
-- column: transfers derived | Transfers.
-- column: unfinished derived | Of those: without an end.
-- column: failed derived | Of those: failed.
-- column: blocks [blocks] derived | GPU blocks they covered.
-- column: bytes [bytes] derived | Bytes, where the connector tells.
-- column: copy_ms [ms] derived | Time of all copies.
-- column: mean_gb_per_s [GB/s] derived | Bytes over that time, 10^9 bytes a second.
-- column: p50_gb_per_s [GB/s] derived | Median bandwidth of a transfer.
-- column: p99_gb_per_s [GB/s] derived | 99 of 100 transfers were at most this fast.
-- column: p01_gb_per_s [GB/s] derived | One in 100 was at most this fast.
-- column: p50_queued_ms [ms] derived | Median wait before the copy.
-- column: p99_queued_ms [ms] derived | 99 of 100 waited at most this long.
-- column: p50_total_ms [ms] derived | Median time from submission until the worker knew of the end.
-- column: p99_total_ms [ms] derived | 99 of 100 took at most this long.

WITH timed AS (
    SELECT
        *,
        CASE
            WHEN device_ns IS NOT NULL THEN 'device'
            WHEN reported_ns IS NOT NULL THEN 'reported'
            WHEN started_ns IS NOT NULL AND finished_ns IS NOT NULL THEN 'host'
            ELSE 'none'
        END AS timed_by,
        coalesce(device_ns, reported_ns, finished_ns - started_ns) AS copy_ns,
        finished_ns - submitted_ns AS total_ns
    FROM transfer
), measured AS (
    SELECT
        *,
        bytes / nullif(copy_ns, 0) AS gb_per_s,
        coalesce(started_ns - submitted_ns, CASE WHEN total_ns > copy_ns THEN total_ns - copy_ns ELSE 0 * total_ns END)
            AS queued_ns
    FROM timed
)
SELECT
    engine_id,
    connector,
    direction,
    from_tier,
    to_tier,
    timed_by,
    count(*) AS transfers,
    count(*) FILTER (finished_ns IS NULL) AS unfinished,
    count(*) FILTER (NOT success) AS failed,
    sum(blocks)::BIGINT AS blocks,
    sum(bytes)::BIGINT AS bytes,
    sum(copy_ns)::BIGINT / 1e6 AS copy_ms,
    (sum(bytes) FILTER (copy_ns IS NOT NULL) / nullif(sum(copy_ns) FILTER (bytes IS NOT NULL), 0)) AS mean_gb_per_s,
    quantile_cont(gb_per_s, 0.5) AS p50_gb_per_s,
    quantile_cont(gb_per_s, 0.99) AS p99_gb_per_s,
    quantile_cont(gb_per_s, 0.01) AS p01_gb_per_s,
    quantile_cont(queued_ns, 0.5) / 1e6 AS p50_queued_ms,
    quantile_cont(queued_ns, 0.99) / 1e6 AS p99_queued_ms,
    quantile_cont(total_ns, 0.5) / 1e6 AS p50_total_ms,
    quantile_cont(total_ns, 0.99) / 1e6 AS p99_total_ms
FROM measured
GROUP BY engine_id, connector, direction, from_tier, to_tier, timed_by
ORDER BY engine_id, connector, direction, from_tier, to_tier, timed_by
