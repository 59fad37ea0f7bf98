-- What did the GPU do in each step, and how long was it idle?
--
-- One row per step and GPU, from a profile (Nsight Systems or PyTorch's) ingested with kvtrace's NVTX ranges or with a
-- recording made at the same time. Everything that was launched for the step counts, wherever it then ran; busy is the
-- time in which at least one kernel, copy or fill of the step ran. Kernels are told apart by their names (see
-- docs/nsight.md), so the shares are a guess by rules. attributed_after is the part of the kernels whose step follows
-- from when they were launched, not from a range around their launch.
--
-- group: GPU
-- needs: gpu_activity, gpu_attribution
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: step, start_ns, span_ms, busy_ms, idle_ms, kernels, attention_ms, gemm_ms
-- worst: idle_ms
-- column: engine_id derived | The engine; NULL without a recording that fits.
-- column: step derived | Scheduler step.
-- column: pid recorded | Process, as the profiler saw it.
-- column: device recorded | GPU, as the profiler numbers it.
-- column: start_ns [ns] recorded | Start of the step's first activity, UNIX time.
-- column: span_ms [ms] derived | From its start to the end of the last one.
-- column: busy_ms [ms] derived | Time in which the GPU worked for the step.
-- column: idle_ms [ms] derived | Rest of the span.
-- column: launch_gap_ms [ms] derived | GPU time between the steps before and this one; 0 if they overlap.
-- column: kernels derived | Kernels launched for the step.
-- column: attention_ms [ms] inferred | Sum of the durations of attention kernels.
-- column: gemm_ms [ms] inferred | The same of matrix multiplications.
-- column: kv_write_ms [ms] inferred | The same of kernels that write KV.
-- column: norm_activation_ms [ms] inferred | The same of norms and activations.
-- column: communication_ms [ms] inferred | The same of collectives.
-- column: sampling_ms [ms] inferred | The same of sampling.
-- column: other_ms [ms] inferred | The same of all other kernels, copies by kernel and kvtrace's own included.
-- column: memcpy_ms [ms] recorded | Sum of the durations of copies and fills.
-- column: attributed_after [ratio] derived | Share of the kernels whose step was inferred from the time of their launch.

SELECT
    g.engine_id,
    g.step,
    g.pid,
    g.device,
    g.start_ns,
    (g.end_ns - g.start_ns) / 1e6 AS span_ms,
    g.busy_ns / 1e6 AS busy_ms,
    g.idle_ns / 1e6 AS idle_ms,
    g.launch_gap_ns / 1e6 AS launch_gap_ms,
    g.kernels,
    g.attention_ns / 1e6 AS attention_ms,
    g.gemm_ns / 1e6 AS gemm_ms,
    g.kv_write_ns / 1e6 AS kv_write_ms,
    g.norm_activation_ns / 1e6 AS norm_activation_ms,
    g.communication_ns / 1e6 AS communication_ms,
    g.sampling_ns / 1e6 AS sampling_ms,
    (g.other_ns + g.copy_ns + g.kvtrace_ns) / 1e6 AS other_ms,
    (g.memcpy_ns + g.memset_ns) / 1e6 AS memcpy_ms,
    g.inferred_kernels / nullif(g.kernels, 0) AS attributed_after
FROM step_gpu g
WHERE g.step >= coalesce($first_step, g.step) AND g.step <= coalesce($last_step, g.step)
ORDER BY g.engine_id, g.step, g.source_id, g.pid, g.device
