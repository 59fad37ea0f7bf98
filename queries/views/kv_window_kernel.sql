-- A GPU window of kvtrace's, laid on the profiler's kernels of the same step and layer.
--
-- It shows how well two clocks agree. A window that encloses its kernels has no negative delta; one that the kernels kept
-- themselves (`kv_layer.in_kernel`) lies in them and has no positive one.
--
-- needs: gpu_activity, gpu_attribution, gpu_layer, gpu_process, kernel_name, kv_window
-- column: process_id recorded | The worker (`process.process_id`).
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: layer recorded | Layer.
-- column: kind recorded | What the layer did.
-- column: start_ns [ns] recorded | Start of the window.
-- column: end_ns [ns] recorded | End of the window.
-- column: kernels derived | Kernels of the layer and kind.
-- column: kernel_start_ns [ns] derived | Start of the first.
-- column: kernel_end_ns [ns] derived | End of the last.
-- column: start_delta_ns [ns] derived | kernel_start_ns - start_ns.
-- column: end_delta_ns [ns] derived | end_ns - kernel_end_ns.

WITH laid AS (
    SELECT
        p.process_id, t.engine_id, t.step, l.layer,
        CASE WHEN n.layer_role = 'kv_write' THEN 'write' ELSE 'attention' END::e_window_kind AS kind,
        count(*) AS kernels, min(a.start_ns) AS kernel_start_ns, max(a.end_ns) AS kernel_end_ns
    FROM gpu_layer l JOIN gpu_activity a USING (activity_id) JOIN gpu_attribution t USING (activity_id)
    JOIN kernel_name n USING (kernel_name_id)
    JOIN gpu_process p ON p.source_id = a.source_id AND p.pid = a.pid
    WHERE t.step IS NOT NULL
    GROUP BY ALL
)
SELECT
    w.process_id, w.engine_id, w.step, w.layer, w.kind, w.start_ns, w.end_ns, laid.kernels,
    laid.kernel_start_ns, laid.kernel_end_ns, laid.kernel_start_ns - w.start_ns AS start_delta_ns,
    w.end_ns - laid.kernel_end_ns AS end_delta_ns
FROM kv_window w JOIN laid
    ON
        laid.process_id = w.process_id AND laid.engine_id = w.engine_id
        AND laid.step = w.step AND laid.layer = w.layer AND laid.kind = w.kind
WHERE w.observed IS NOT false
