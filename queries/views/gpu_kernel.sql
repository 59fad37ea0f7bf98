-- A kernel, with its name, step and layer.
--
-- needs: gpu_activity, gpu_attribution, gpu_layer, kernel_name, step_schedule
-- column: activity_id recorded | Key, as in gpu_activity.
-- column: start_ns [ns] recorded | Start.
-- column: end_ns [ns] recorded | End.
-- column: duration_ns [ns] derived | end_ns - start_ns.
-- column: source_id recorded | The file it was read from.
-- column: pid recorded | Process, as the profiler saw it.
-- column: device recorded | GPU, as the profiler numbers it.
-- column: stream recorded | CUDA stream.
-- column: kernel_name_id recorded | Its name's key (`kernel_name.kernel_name_id`).
-- column: name recorded | The function's name alone.
-- column: demangled_name recorded | The whole demangled name.
-- column: category derived | What it is for, by its name.
-- column: engine_id derived | The engine whose step it is.
-- column: step derived | Scheduler step it was launched for.
-- column: attribution derived | How the step was found.
-- column: phase recorded | What the step computed: decode, prefill or mixed; NULL without a recording.
-- column: layer derived | Layer, if it is a kernel of one and the layer is known.
-- column: layer_method derived | How the layer was found.
-- column: layer_role derived | Its part in the layer, by its name.
-- column: call_id recorded | The call that launched it.
-- column: graph_node recorded | CUDA graph node, if a graph launched it.

SELECT
    a.activity_id, a.start_ns, a.end_ns, a.end_ns - a.start_ns AS duration_ns, a.source_id, a.pid, a.device,
    a.stream, a.kernel_name_id, n.short_name AS name, n.demangled_name, n.category, t.engine_id, t.step,
    t.method AS attribution,
    CASE
        WHEN s.decode_tokens = 0 AND s.prefill_tokens + s.chunked_prefill_tokens + s.resumed_tokens = 0
            THEN NULL
        WHEN s.prefill_tokens + s.chunked_prefill_tokens + s.resumed_tokens = 0 THEN 'decode'
        WHEN s.decode_tokens = 0 THEN 'prefill' WHEN s.step IS NOT NULL THEN 'mixed'
    END AS phase,
    l.layer, l.method AS layer_method, n.layer_role, t.call_id, a.graph_node
FROM gpu_activity a
LEFT JOIN kernel_name n USING (kernel_name_id)
LEFT JOIN gpu_attribution t USING (activity_id)
LEFT JOIN gpu_layer l USING (activity_id)
LEFT JOIN step_schedule s ON s.engine_id = t.engine_id AND s.step = t.step
WHERE a.kind = 'kernel'
