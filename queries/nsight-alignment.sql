-- How well do the clocks of a profile and of the recording agree, and how many kernels found their step?
--
-- One row per profile and way to compare the clocks; the applied one made UNIX times of the profile's own. Residuals
-- are what it leaves unexplained in each kind of reading. Of kv_windows, the residual is how far a layer's kernels
-- reach out of the window that kvtrace timed around them on the GPU, 0 if the window encloses them. Of a window that
-- the kernels kept themselves (`kv_layer.in_kernel`), it is how far the window reaches out of them.
--
-- group: GPU
-- needs: source, alignment
-- key: file, method, applied, offset_ns, residual_p50_us, kernels_with_step
-- column: file recorded | The profile.
-- column: kind recorded | nsight or torch.
-- column: version recorded | Version of the program that wrote it.
-- column: method derived | What the clocks were compared by.
-- column: applied derived | This one was used; the others are checks.
-- column: offset_ns [ns] derived | UNIX time minus the profile's time.
-- column: drift_ppb [ppb] derived | How much faster UNIX time runs than the profile's clock, in 1e-9.
-- column: readings derived | Readings compared.
-- column: residual_p50_us [us] derived | Median of what is left unexplained, without sign.
-- column: residual_p99_us [us] derived | 99th percentile of the same.
-- column: residual_max_us [us] derived | The largest.
-- column: kernels derived | Kernels in the profile.
-- column: kernels_with_step derived | Those with a step.
-- column: kernels_by_time derived | Those whose step follows from when they were launched or ran, not from a range
--     around their launch.

SELECT
    s.file,
    s.kind::VARCHAR AS kind,
    s.version,
    a.method::VARCHAR AS method,
    a.applied,
    a.offset_ns,
    a.drift_ppb,
    a.readings,
    a.residual_p50_ns / 1e3 AS residual_p50_us,
    a.residual_p99_ns / 1e3 AS residual_p99_us,
    a.residual_max_ns / 1e3 AS residual_max_us,
    coalesce(k.kernels, 0) AS kernels,
    coalesce(k.with_step, 0) AS kernels_with_step,
    coalesce(k.by_time, 0) AS kernels_by_time
FROM source s JOIN alignment a USING (source_id)
LEFT JOIN (
    SELECT
        source_id, count(*) AS kernels, count(step) AS with_step,
        count(*) FILTER (attribution IN ('after_range', 'other_thread', 'gpu_time', 'stream_order')) AS by_time
    FROM gpu_kernel GROUP BY source_id
) AS k USING (source_id)
ORDER BY s.source_id, a.applied DESC, a.method
