-- What kept requests waiting, in how many steps and for how much of the time?
--
-- Each step counts under the reason why the request at the head of its waiting queue was not admitted. Time is the
-- steps' wall time (interval_ns), without idle time between steps. The recorder infers the reason; `none` means that no
-- request was left waiting, NULL that no reason was recorded.
--
-- group: Scheduling
-- figure: 72-run policy study: admission limits, shares of steps and of time
-- needs: step_schedule
-- words: queue, queued, why, waiting
-- key: admission_limit, steps, step_share, wall_ms, requests, mean_need_blocks, mean_free_blocks
-- column: engine_id recorded | The engine.
-- column: admission_limit inferred | Why the head of the waiting queue was not admitted.
-- column: steps [steps] derived | Steps with that reason.
-- column: step_share [ratio] derived | Share of the engine's steps.
-- column: wall_ms [ms] derived | Wall time of those steps.
-- column: wall_share [ratio] derived | Share of the wall time of the engine's steps.
-- column: requests [requests] derived | Different requests that were at the head of the queue.
-- column: mean_waiting [requests] derived | Mean number of requests waiting after scheduling.
-- column: waited_ms [ms] derived | Wall time of those steps times the requests waiting in each: requests' time.
-- column: mean_need_blocks [blocks] derived | With kv_insufficient: mean blocks the refused allocations asked for.
-- column: mean_free_blocks [blocks] derived | With kv_insufficient: mean blocks free at those moments.
-- column: mean_kept_blocks [blocks] derived | Of these, mean blocks to be left free: watermark and reservations.

WITH grouped AS (
    SELECT
        engine_id,
        admission_limit,
        count(*) AS steps,
        coalesce(sum(interval_ns), 0)::BIGINT AS wall_ns,
        count(DISTINCT limit_request) AS requests,
        avg(waiting) AS mean_waiting,
        coalesce(sum(interval_ns * waiting), 0)::BIGINT AS waited_ns,
        avg(limit_need_blocks) AS mean_need_blocks,
        avg(limit_free_blocks) AS mean_free_blocks,
        avg(limit_kept_blocks) AS mean_kept_blocks
    FROM step
    GROUP BY engine_id, admission_limit
)
SELECT
    engine_id,
    admission_limit,
    steps,
    steps / sum(steps) OVER engine AS step_share,
    wall_ns / 1e6 AS wall_ms,
    wall_ns / nullif(sum(wall_ns) OVER engine, 0) AS wall_share,
    requests,
    mean_waiting,
    waited_ns / 1e6 AS waited_ms,
    mean_need_blocks,
    mean_free_blocks,
    mean_kept_blocks
FROM grouped
WINDOW engine AS (PARTITION BY engine_id)
ORDER BY engine_id, steps DESC, admission_limit
