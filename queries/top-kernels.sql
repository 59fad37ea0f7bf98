-- Which kernels take the most GPU time?
--
-- Kernels of one name and device, over the whole profile or the steps given. Categories follow from the names by the
-- first rule that is met (docs/nsight.md lists them); category_rule says which.
--
-- group: GPU
-- needs: gpu_activity, kernel_name
-- param: first_step INTEGER = NULL | Leave out what was launched for no step, and for the steps before this one.
-- param: last_step INTEGER = NULL | Leave out what was launched for no step, and for the steps after this one.
-- key: name, category, kernels, total_ms, share, p50_us
-- column: device recorded | GPU, as the profiler numbers it.
-- column: name recorded | The function's name alone.
-- column: category inferred | What the kernel is for.
-- column: kernels derived | How often it ran.
-- column: total_ms [ms] derived | Sum of its durations.
-- column: share [ratio] derived | Of the durations of all kernels on that GPU that are counted here.
-- column: mean_us [us] derived | Mean duration.
-- column: p50_us [us] derived | Median duration.
-- column: max_us [us] recorded | Longest duration.
-- column: category_rule derived | The rule that its name met first; NULL if none.
-- column: demangled_name recorded | The whole name.

SELECT
    k.device,
    k.name,
    k.category::VARCHAR AS category,
    count(*) AS kernels,
    sum(k.duration_ns) / 1e6 AS total_ms,
    sum(k.duration_ns) / nullif(sum(sum(k.duration_ns)) OVER (PARTITION BY k.device), 0) AS share,
    avg(k.duration_ns) / 1e3 AS mean_us,
    median(k.duration_ns) / 1e3 AS p50_us,
    max(k.duration_ns) / 1e3 AS max_us,
    any_value(n.category_rule) AS category_rule,
    n.demangled_name
FROM gpu_kernel k JOIN kernel_name n USING (kernel_name_id)
WHERE ($first_step IS NULL OR k.step >= $first_step) AND ($last_step IS NULL OR k.step <= $last_step)
GROUP BY k.device, k.name, k.category, n.demangled_name
ORDER BY total_ms DESC, k.device, n.demangled_name, k.name
