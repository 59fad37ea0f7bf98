-- A GPU's time in a scheduler step: what was launched for the step, wherever it then ran.
--
-- needs: gpu_activity, gpu_attribution, kernel_name
-- column: engine_id derived | The engine whose step it is.
-- column: step derived | Scheduler step it was launched for.
-- column: source_id recorded | The file it was read from.
-- column: pid recorded | Process, as the profiler saw it.
-- column: device recorded | GPU, as the profiler numbers it.
-- column: start_ns [ns] derived | Start of the step's first activity.
-- column: end_ns [ns] derived | End of its last.
-- column: busy_ns [ns] derived | Time in which at least one of its activities ran.
-- column: idle_ns [ns] derived | Time between its first and last in which none of them did.
-- column: launch_gap_ns [ns] derived | From the end of all earlier steps' activities to its first; 0 if they overlap,
--     NULL for the first step.
-- column: kernels derived | Kernels.
-- column: inferred_kernels derived | Kernels whose step follows from when they were launched or ran, not from a range
--     around their launch.
-- column: kernel_ns [ns] derived | Sum of their durations: the categories add up to it.
-- column: attention_ns [ns] derived | Sum of the durations of attention kernels.
-- column: gemm_ns [ns] derived | Sum of the durations of gemm kernels.
-- column: kv_write_ns [ns] derived | Sum of the durations of kv_write kernels.
-- column: copy_ns [ns] derived | Sum of the durations of copy kernels.
-- column: norm_activation_ns [ns] derived | Sum of the durations of norm_activation kernels.
-- column: communication_ns [ns] derived | Sum of the durations of communication kernels.
-- column: sampling_ns [ns] derived | Sum of the durations of sampling kernels.
-- column: kvtrace_ns [ns] derived | Sum of the durations of kvtrace kernels.
-- column: other_ns [ns] derived | Sum of the durations of other kernels.
-- column: memcpy_ns [ns] derived | Sum of the copies' durations.
-- column: memset_ns [ns] derived | Sum of the fills' durations.
-- column: graph_ns [ns] derived | Sum of the durations of graphs that were traced as a whole.

WITH work AS (
    SELECT
        t.engine_id, t.step, t.method, a.source_id, a.pid, a.device, a.kind,
        CASE WHEN a.kind = 'kernel' THEN coalesce(n.category, 'other') END AS category,
        a.start_ns, a.end_ns, a.end_ns - a.start_ns AS length_ns,
        max(a.end_ns) OVER (
            PARTITION BY t.engine_id, t.step, a.source_id, a.pid, a.device ORDER BY a.start_ns, a.end_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_until_ns
    FROM gpu_activity a JOIN gpu_attribution t USING (activity_id)
    LEFT JOIN kernel_name n USING (kernel_name_id)
    WHERE t.step IS NOT NULL
), spans AS (
    SELECT
        engine_id, step, source_id, pid, device, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        sum(greatest(0, end_ns - greatest(start_ns, coalesce(covered_until_ns, start_ns))))::BIGINT AS busy_ns,
        count(*) FILTER (kind = 'kernel') AS kernels,
        count(*) FILTER (
            kind = 'kernel' AND method IN ('after_range', 'other_thread', 'gpu_time', 'stream_order')
        ) AS inferred_kernels,
        coalesce(sum(length_ns) FILTER (kind = 'kernel'), 0)::BIGINT AS kernel_ns,
        coalesce(sum(length_ns) FILTER (category = 'attention'), 0)::BIGINT AS attention_ns,
        coalesce(sum(length_ns) FILTER (category = 'gemm'), 0)::BIGINT AS gemm_ns,
        coalesce(sum(length_ns) FILTER (category = 'kv_write'), 0)::BIGINT AS kv_write_ns,
        coalesce(sum(length_ns) FILTER (category = 'copy'), 0)::BIGINT AS copy_ns,
        coalesce(sum(length_ns) FILTER (category = 'norm_activation'), 0)::BIGINT AS norm_activation_ns,
        coalesce(sum(length_ns) FILTER (category = 'communication'), 0)::BIGINT AS communication_ns,
        coalesce(sum(length_ns) FILTER (category = 'sampling'), 0)::BIGINT AS sampling_ns,
        coalesce(sum(length_ns) FILTER (category = 'kvtrace'), 0)::BIGINT AS kvtrace_ns,
        coalesce(sum(length_ns) FILTER (category = 'other'), 0)::BIGINT AS other_ns,
        coalesce(sum(length_ns) FILTER (kind = 'memcpy'), 0)::BIGINT AS memcpy_ns,
        coalesce(sum(length_ns) FILTER (kind = 'memset'), 0)::BIGINT AS memset_ns,
        coalesce(sum(length_ns) FILTER (kind = 'graph'), 0)::BIGINT AS graph_ns
    FROM work GROUP BY engine_id, step, source_id, pid, device
)
SELECT
    engine_id, step, source_id, pid, device, start_ns, end_ns, busy_ns,
    end_ns - start_ns - busy_ns AS idle_ns,
    CASE WHEN before_ns IS NOT NULL THEN start_ns - least(start_ns, before_ns) END AS launch_gap_ns,
    * EXCLUDE (engine_id, step, source_id, pid, device, start_ns, end_ns, busy_ns, before_ns)
FROM (
    SELECT *, max(end_ns) OVER (
        PARTITION BY source_id, pid, device ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_ns FROM spans
)
