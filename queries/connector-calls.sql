-- How long was the worker in calls into its KV connector?
--
-- One row per engine and call, the longest in all first. A worker launches nothing while it is in such a call. Where a
-- connector copies within it, as LMCacheConnectorV1 does by default, the step's requests wait for the copy; where it only
-- hands copies over, they wait for that. LMCacheConnectorV1 copies what a step has computed, so its save waits for the
-- GPU first, which has work meanwhile. Of several workers, the one that took longest in a step counts. Parts of a
-- MultiConnector are in its own calls.
--
-- group: Offload
-- needs: connector_call, step, transfer_submit
-- words: connector, lmcache, offload, overhead, blocking, save, load, slow
-- key: connector, call, total_ms, share, p99_ms, max_ms
-- column: engine_id recorded | The engine.
-- column: connector recorded | The connector's class.
-- column: call recorded | load: before the forward pass. save: behind it. poll: which transfers have ended.
-- column: steps [steps] derived | Steps with such a call.
-- column: total_ms [ms] derived | Time in these calls.
-- column: share [ratio] derived | Of the time that the engine's steps took, idle time between them left out.
-- column: waited_ms [ms] derived | Of it: waiting for the step's own work, before a store began.
-- column: batch_ms [ms] derived | The time in these calls, times the requests that each step ran.
-- column: mean_ms [ms] derived | Mean of a step.
-- column: p99_ms [ms] derived | 99 of 100 steps took at most this long.
-- column: max_ms [ms] derived | The longest.

WITH spent AS (
    SELECT engine_id, connector, call, step, process_id, sum(end_ns - start_ns) AS ns
    FROM connector_call
    WHERE part = 0
    GROUP BY engine_id, connector, call, step, process_id
), waited AS (
    SELECT c.engine_id, c.step, c.process_id, sum(t.started_ns - t.submitted_ns) AS ns
    FROM connector_call c
    JOIN transfer t ON t.engine_id = c.engine_id AND t.step = c.step AND t.process_id = c.process_id
    WHERE
        c.part = 0 AND c.call = 'save' AND t.direction = 'store'
        AND t.submitted_ns >= c.start_ns AND t.started_ns <= c.end_ns
    GROUP BY c.engine_id, c.step, c.process_id
), slowest AS (
    SELECT
        s.engine_id,
        s.connector,
        s.call,
        s.step,
        max(s.ns) AS ns,
        arg_max(if(s.call = 'save', coalesce(w.ns, 0), 0), s.ns) AS waited_ns
    FROM spent s
    LEFT JOIN waited w ON w.engine_id = s.engine_id AND w.step = s.step AND w.process_id = s.process_id
    GROUP BY s.engine_id, s.connector, s.call, s.step
), counted AS (
    SELECT s.engine_id, s.connector, s.call, s.ns, s.waited_ns, coalesce(t.scheduled_requests, 0) AS requests
    FROM slowest s
    LEFT JOIN step t ON t.engine_id = s.engine_id AND t.step = s.step
), whole AS (
    SELECT engine_id, sum(interval_ns) AS ns
    FROM step
    GROUP BY engine_id
)
SELECT
    s.engine_id,
    s.connector,
    s.call,
    count(*) AS steps,
    sum(s.ns) / 1e6 AS total_ms,
    sum(s.ns) / nullif(max(w.ns), 0) AS share,
    sum(s.waited_ns) / 1e6 AS waited_ms,
    sum(s.ns * s.requests) / 1e6 AS batch_ms,
    avg(s.ns) / 1e6 AS mean_ms,
    quantile_disc(s.ns, 0.99) / 1e6 AS p99_ms,
    max(s.ns) / 1e6 AS max_ms
FROM counted s
LEFT JOIN whole w ON w.engine_id = s.engine_id
GROUP BY s.engine_id, s.connector, s.call
ORDER BY s.engine_id, total_ms DESC, s.call
