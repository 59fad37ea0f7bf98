-- A step that ended, or a sample of an imported engine: how full KV memory was, and how fast the engine.
--
-- Of a step the pool is as `schedule` left it.
--
-- needs: connector, engine_sample, step, step_schedule, tier_occupancy
-- column: engine_id recorded | The engine.
-- column: step recorded | The step; NULL if it is not known.
-- column: start_ns [ns] recorded | When the step, or else the sample's interval, began.
-- column: end_ns [ns] recorded | When it ended.
-- column: begun_ns [ns] derived | When what tokens_per_s is averaged over began.
-- column: gpu_usage [ratio] derived | Share of the GPU's KV blocks in use, 0 to 1 (of a sample: recorded).
-- column: host_usage [ratio] derived | Share of the host's KV blocks in use: taken and not given up, of the CPU tier's
--     capacity (of a sample: recorded); NULL if unknown.
-- column: tokens_per_s [tokens/s] derived | Tokens scheduled over the wall time the step added (of a sample: recorded).
-- column: running [requests] recorded | Requests running.
-- column: swapped [requests] recorded | Requests swapped out; NULL if unknown.
-- column: waiting [requests] recorded | Requests waiting, swapped ones not counted.
-- column: preempted [requests] derived | Requests preempted; of samples without steps, rises of swapped requests, or of
--     waiting ones while running ones fall.
-- column: resumed [requests] derived | Requests that run again; of samples without steps, falls of swapped requests.

WITH sampled AS (
    SELECT
        s.*, running - lag(running) OVER engine AS more_running,
        swapped - lag(swapped) OVER engine AS more_swapped, waiting - lag(waiting) OVER engine AS more_waiting
    FROM engine_sample s
    WINDOW engine AS (PARTITION BY engine_id, part ORDER BY sample)
), hosted AS (
    -- Over all connectors: what each event adds or takes.
    SELECT engine_id, time_ns, place, sum(more_blocks) OVER (PARTITION BY engine_id ORDER BY place) AS blocks
    FROM (
        SELECT
            engine_id, time_ns, place,
            occupied_blocks
            - lag(occupied_blocks, 1, 0) OVER (PARTITION BY engine_id, connector ORDER BY place) AS more_blocks
        FROM tier_occupancy WHERE tier = 'cpu'
    )
), host AS (
    SELECT h.engine_id, h.time_ns, h.blocks / nullif(c.capacity, 0) AS usage
    FROM (
        SELECT engine_id, time_ns, arg_max(blocks, place) AS blocks FROM hosted GROUP BY engine_id, time_ns
    ) h JOIN (
        SELECT process_id AS engine_id, sum(capacity_blocks) AS capacity FROM connector
        WHERE role = 'scheduler' AND tier = 'cpu' GROUP BY process_id
    ) c USING (engine_id)
)
SELECT
    s.engine_id, s.step, coalesce(t.start_ns, s.time_ns - s.interval_ns) AS start_ns, s.time_ns AS end_ns,
    s.time_ns - s.interval_ns AS begun_ns, s.gpu_usage, s.host_usage, s.tokens_per_s, s.running, s.swapped,
    s.waiting,
    coalesce(t.preempted_requests, CASE
        WHEN s.more_swapped > 0 THEN s.more_swapped
        WHEN s.more_waiting > 0 AND s.more_running < 0 THEN least(s.more_waiting, -s.more_running) ELSE 0
    END)
        AS preempted,
    coalesce(t.resumed_requests, CASE WHEN s.more_swapped < 0 THEN -s.more_swapped ELSE 0 END) AS resumed
FROM sampled s LEFT JOIN step_schedule t USING (engine_id, step)
UNION ALL
SELECT
    s.engine_id, s.step, s.start_ns, s.end_ns, s.start_ns,
    s.used_blocks / nullif(s.used_blocks + s.free_blocks, 0), h.usage,
    s.scheduled_tokens * 1e9 / nullif(s.interval_ns, 0), s.running, NULL, s.waiting,
    s.preempted_requests, s.resumed_requests
FROM step s ASOF LEFT JOIN host h ON s.engine_id = h.engine_id AND s.end_ns >= h.time_ns
WHERE
    s.end_ns IS NOT NULL
    AND s.engine_id NOT IN (SELECT engine_id FROM engine_sample WHERE engine_id IS NOT NULL)
