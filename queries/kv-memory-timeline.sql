-- How full are the GPU's and the host's KV memory over time, how fast is the engine, and when are requests evicted and
-- resumed?
--
-- One row per step, or a sample of an imported engine; time counts from its engine's first one. A recorded step has its
-- end as time and the pool as `schedule` left it. Of an imported engine without steps, evictions are rises of swapped
-- requests, or of waiting ones while running ones fall.
--
-- group: KV memory
-- figure: IPDPS'25 study of KV access, Figure 11a: GPU and CPU KV utilisation and throughput, recompute and swap.
-- needs: kv_usage
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- key: step, start_s, gpu_usage, running, waiting, preempted, tokens_per_s
-- column: engine_id recorded | The engine.
-- column: name recorded | Name of an imported run, or the model.
-- column: preemption_mode recorded | What an eviction does with the KV: recompute or swap; NULL if unknown.
-- column: step recorded | The step; NULL if it is not known.
-- column: start_s [s] derived | When the step, or the sample's interval, began.
-- column: time_s [s] derived | When it ended.
-- column: gpu_usage [ratio] derived | Share of the GPU's KV blocks in use (of a sample: recorded).
-- column: host_usage [ratio] derived | Share of the host's KV blocks in use; NULL if unknown.
-- column: tokens_per_s [tokens/s] derived | Tokens computed a second (of a sample: recorded).
-- column: running [requests] recorded | Requests running.
-- column: swapped [requests] recorded | Requests swapped out; NULL if unknown.
-- column: waiting [requests] recorded | Requests waiting, swapped ones not counted.
-- column: preempted [requests] derived | Requests that were preempted.
-- column: resumed [requests] derived | Requests that got it back.

SELECT
    m.engine_id,
    coalesce(n.name, e.model) AS name,
    n.preemption_mode,
    m.step,
    (m.start_ns - min(coalesce(m.begun_ns, m.end_ns)) OVER engine) / 1e9 AS start_s,
    (m.end_ns - min(coalesce(m.begun_ns, m.end_ns)) OVER engine) / 1e9 AS time_s,
    m.gpu_usage,
    m.host_usage,
    m.tokens_per_s,
    m.running,
    m.swapped,
    m.waiting,
    m.preempted,
    m.resumed
FROM kv_usage m LEFT JOIN engine_source n USING (engine_id) LEFT JOIN engine e USING (engine_id)
WHERE $engine IS NULL OR m.engine_id = $engine
WINDOW engine AS (PARTITION BY m.engine_id)
ORDER BY m.engine_id, m.end_ns, m.step
