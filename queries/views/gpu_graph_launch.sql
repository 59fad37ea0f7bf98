-- A launch of a CUDA graph, with what the GPU did for it.
--
-- needs: gpu_activity, gpu_attribution, gpu_call
-- column: call_id recorded | The call.
-- column: source_id recorded | The file it was read from.
-- column: pid recorded | Process.
-- column: tid recorded | Thread.
-- column: start_ns [ns] recorded | When the call began.
-- column: end_ns [ns] recorded | When it returned.
-- column: engine_id derived | The engine whose step it is.
-- column: step derived | Scheduler step it was launched for.
-- column: activities derived | Kernels, copies and fills of the graph's nodes (or 1, traced as a whole).
-- column: gpu_start_ns [ns] derived | Start of the first.
-- column: gpu_end_ns [ns] derived | End of the last.

SELECT
    c.call_id, c.source_id, c.pid, c.tid, c.start_ns, c.end_ns, any_value(t.engine_id) AS engine_id,
    any_value(t.step) AS step, count(a.activity_id) AS activities, min(a.start_ns) AS gpu_start_ns,
    max(a.end_ns) AS gpu_end_ns
FROM gpu_call c LEFT JOIN gpu_attribution t USING (call_id) LEFT JOIN gpu_activity a USING (activity_id)
WHERE c.name LIKE '%GraphLaunch%'
GROUP BY ALL
