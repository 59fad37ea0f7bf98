-- How much is copied to and from the GPU, and how fast?
--
-- Copies by direction, kinds of memory and device, over the whole profile or the steps given. The bandwidth is that of
-- the copies themselves: all their bytes over all their time. Small copies cannot be fast; see the mean size.
--
-- group: GPU
-- needs: gpu_activity, gpu_transfer
-- param: first_step INTEGER = NULL | Leave out what was launched for no step, and for the steps before this one.
-- param: last_step INTEGER = NULL | Leave out what was launched for no step, and for the steps after this one.
-- key: direction, source_memory, target_memory, copies, bytes, total_ms
-- column: device recorded | GPU, as the profiler numbers it.
-- column: direction recorded | From where to where.
-- column: source_memory recorded | Memory that is read.
-- column: target_memory recorded | Memory that is written.
-- column: copies derived | Number of copies.
-- column: bytes [bytes] derived | Bytes copied.
-- column: mean_bytes [bytes] derived | Mean size of a copy.
-- column: total_ms [ms] derived | Sum of the durations.
-- column: bandwidth_bytes_per_s [bytes/s] derived | bytes over total_ms.
-- column: fastest_bytes_per_s [bytes/s] derived | Bandwidth of the fastest copy.
-- column: in_steps derived | How many of the copies were launched for a step.

SELECT
    device,
    direction::VARCHAR AS direction,
    source_memory::VARCHAR AS source_memory,
    target_memory::VARCHAR AS target_memory,
    count(*) AS copies,
    sum(bytes)::BIGINT AS bytes,
    avg(bytes) AS mean_bytes,
    sum(duration_ns) / 1e6 AS total_ms,
    sum(bytes) * 1e9 / nullif(sum(duration_ns), 0) AS bandwidth_bytes_per_s,
    max(bytes_per_s) AS fastest_bytes_per_s,
    count(step) AS in_steps
FROM gpu_copy
WHERE ($first_step IS NULL OR step >= $first_step) AND ($last_step IS NULL OR step <= $last_step)
GROUP BY ALL
ORDER BY device, direction, source_memory, target_memory
