-- How full are the GPU's and the host's KV memory over time, how fast is the engine, and when are requests evicted and
-- resumed?
--
-- One row a step, or a sample of an imported engine; time counts from its engine's first one. A recorded step has its end
-- as time and the pool as `schedule` left it. Of an imported engine without steps, evictions are rises of swapped
-- requests, or of waiting ones while running ones fall.
--
-- figure: IPDPS'25 study of KV access, Figure 11a: GPU and CPU KV utilisation and throughput, recompute and swap.
-- needs: step_schedule, step_update
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
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
-- column: evicted [requests] derived | Requests that lost their place on the GPU.
-- column: resumed [requests] derived | Requests that got it back.

WITH sampled AS (
    SELECT s.*, running - lag(running) OVER engine AS more_running, swapped - lag(swapped) OVER engine AS more_swapped,
        waiting - lag(waiting) OVER engine AS more_waiting
    FROM engine_sample s
    WINDOW engine AS (PARTITION BY engine_id, part ORDER BY sample)
), hosted AS (
    SELECT engine_id, time_ns, sum(CASE op WHEN 'store' THEN 1 WHEN 'evict' THEN -1 ELSE 0 END)
        OVER (PARTITION BY engine_id, era ORDER BY place) AS blocks
    FROM (
        SELECT *, rowid AS place, count(*) FILTER (op = 'reset') OVER (PARTITION BY engine_id ORDER BY rowid) AS era
        FROM tier_block WHERE tier = 'cpu'
    )
), host AS (
    SELECT h.engine_id, h.time_ns, h.blocks / nullif(c.capacity, 0) AS usage
    FROM hosted h JOIN (
        SELECT process_id AS engine_id, sum(capacity_blocks) AS capacity FROM connector
        WHERE role = 'scheduler' AND tier = 'cpu' GROUP BY process_id
    ) c USING (engine_id)
), moment AS (
    SELECT s.engine_id, coalesce(t.step, s.step) AS step, coalesce(t.start_ns, s.time_ns - s.interval_ns) AS start_ns,
        s.time_ns, s.time_ns - s.interval_ns AS begun_ns, s.gpu_usage, s.host_usage, s.tokens_per_s, s.running, s.swapped, s.waiting,
        coalesce(t.preempted_requests, CASE WHEN s.more_swapped > 0 THEN s.more_swapped
            WHEN s.more_waiting > 0 AND s.more_running < 0 THEN least(s.more_waiting, -s.more_running) ELSE 0 END)
            AS evicted,
        coalesce(t.resumed_requests, CASE WHEN s.more_swapped < 0 THEN -s.more_swapped ELSE 0 END) AS resumed
    FROM sampled s LEFT JOIN step_schedule t USING (engine_id, step)
    UNION ALL
    SELECT s.engine_id, s.step, s.start_ns, s.end_ns, s.start_ns, s.used_blocks / nullif(s.used_blocks + s.free_blocks, 0),
        h.usage, s.scheduled_tokens * 1e9 / nullif(s.interval_ns, 0), s.running, NULL, s.waiting,
        s.preempted_requests, s.resumed_requests
    FROM step s ASOF LEFT JOIN host h ON s.engine_id = h.engine_id AND s.end_ns >= h.time_ns
    WHERE s.end_ns IS NOT NULL AND s.engine_id NOT IN (SELECT engine_id FROM engine_sample WHERE engine_id IS NOT NULL)
)
SELECT
    m.engine_id,
    coalesce(n.name, e.model) AS name,
    n.preemption_mode,
    m.step,
    (m.start_ns - min(coalesce(m.begun_ns, m.time_ns)) OVER engine) / 1e9 AS start_s,
    (m.time_ns - min(coalesce(m.begun_ns, m.time_ns)) OVER engine) / 1e9 AS time_s,
    m.gpu_usage,
    m.host_usage,
    m.tokens_per_s,
    m.running,
    m.swapped,
    m.waiting,
    m.evicted,
    m.resumed
FROM moment m LEFT JOIN engine_source n USING (engine_id) LEFT JOIN engine e USING (engine_id)
WHERE $engine IS NULL OR m.engine_id = $engine
WINDOW engine AS (PARTITION BY m.engine_id)
ORDER BY m.engine_id, m.time_ns, m.step
