-- A copy to, from or between GPUs.
--
-- needs: gpu_activity, gpu_attribution, gpu_copy_transfer, gpu_transfer
-- column: activity_id recorded | Key, as in gpu_activity.
-- column: start_ns [ns] recorded | Start.
-- column: end_ns [ns] recorded | End.
-- column: duration_ns [ns] derived | end_ns - start_ns.
-- column: source_id recorded | The file it was read from.
-- column: pid recorded | Process, as the profiler saw it.
-- column: device recorded | GPU, as the profiler numbers it.
-- column: stream recorded | CUDA stream.
-- column: direction recorded | From where to where.
-- column: source_memory recorded | Memory it reads.
-- column: target_memory recorded | Memory it writes.
-- column: bytes [bytes] recorded | Bytes copied.
-- column: bytes_per_s [bytes/s] derived | bytes / duration; NULL if the profiler saw no duration.
-- column: engine_id derived | The engine whose step it is.
-- column: step derived | Scheduler step it was launched for.
-- column: attribution derived | How the step was found.
-- column: call_id recorded | The call that launched it.
-- column: process_id derived | The worker whose transfer it was part of; NULL if of none.
-- column: transfer derived | That transfer (`transfer.transfer`).

SELECT
    a.activity_id, a.start_ns, a.end_ns, a.end_ns - a.start_ns AS duration_ns, a.source_id, a.pid, a.device,
    a.stream, m.copy_kind AS direction, m.source_memory, m.target_memory, m.bytes,
    m.bytes * 1e9 / nullif(a.end_ns - a.start_ns, 0) AS bytes_per_s, t.engine_id, t.step,
    t.method AS attribution, t.call_id, o.process_id, o.transfer
FROM gpu_activity a
LEFT JOIN gpu_transfer m USING (activity_id)
LEFT JOIN gpu_attribution t USING (activity_id)
LEFT JOIN gpu_copy_transfer o USING (activity_id)
WHERE a.kind = 'memcpy'
