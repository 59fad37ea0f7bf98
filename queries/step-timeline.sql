-- What did each scheduler step run, how long did it take, and what kept requests waiting?
--
-- One row per step, in the order of steps. A step whose results were never recorded (the recording ended first) has
-- NULL durations. Under async scheduling steps overlap: interval_ms adds up to wall time, duration_ms does not.
--
-- group: Scheduling
-- needs: step_schedule
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- param: first_step INTEGER = NULL | Leave out the steps before this one.
-- param: last_step INTEGER = NULL | Leave out the steps after this one.
-- key: step, start_ns, interval_ms, running, waiting, scheduled_tokens, admission_limit
-- worst: interval_ms
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step, counted from 1 in each engine.
-- column: start_ns [ns] recorded | When `schedule` was entered, UNIX time.
-- column: schedule_ms [ms] derived | Time inside `schedule`.
-- column: duration_ms [ms] derived | From entering `schedule` to having processed the step's results.
-- column: interval_ms [ms] derived | Wall time the step added: since it started or since the end of the step before,
--     whichever is later. Idle time between steps is not in it.
-- column: own_ms [ms] derived | Wall time that was its own: with its launch, which interval_ms has in the step before (view
--     step_time). NULL for steps without tokens.
-- column: running [requests] recorded | Requests in the running queue after scheduling.
-- column: waiting [requests] recorded | Requests in all waiting queues after scheduling.
-- column: scheduled_requests [requests] derived | Requests scheduled, all phases.
-- column: scheduled_tokens [tokens] derived | Tokens scheduled, all phases.
-- column: prefill_tokens [tokens] recorded | Of them, for requests that compute their whole remaining prompt.
-- column: chunked_prefill_tokens [tokens] recorded | Of them, for requests that compute a part of their prompt.
-- column: decode_tokens [tokens] recorded | Of them, for requests that generate.
-- column: resumed_tokens [tokens] recorded | Of them, computed again after a preemption.
-- column: budget_left_tokens [tokens] recorded | Tokens of the step's budget left unused.
-- column: used_blocks [blocks] recorded | Blocks referenced after scheduling.
-- column: free_blocks [blocks] recorded | Blocks in the free queue after scheduling, cached ones included.
-- column: preempted_requests [requests] recorded | Requests preempted by the step.
-- column: finished_requests [requests] recorded | Requests that ended with the step.
-- column: admission_limit inferred | Why the head of the waiting queue was not admitted.
-- column: limit_request recorded | That request.
-- column: limit_need_blocks [blocks] recorded | With kv_insufficient: blocks the refused allocation asked for.
-- column: limit_free_blocks [blocks] recorded | With kv_insufficient: blocks free at that moment.
-- column: limit_kept_blocks [blocks] recorded | Of these, blocks to be left free: the watermark, reservations of others.

SELECT
    engine_id,
    step,
    start_ns,
    (scheduled_ns - start_ns) / 1e6 AS schedule_ms,
    duration_ns / 1e6 AS duration_ms,
    interval_ns / 1e6 AS interval_ms,
    own_ns / 1e6 AS own_ms,
    running,
    waiting,
    scheduled_requests,
    scheduled_tokens,
    prefill_tokens,
    chunked_prefill_tokens,
    decode_tokens,
    resumed_tokens,
    budget_left_tokens,
    used_blocks,
    free_blocks,
    preempted_requests,
    finished_requests,
    admission_limit,
    limit_request,
    limit_need_blocks,
    limit_free_blocks,
    limit_kept_blocks
FROM step LEFT JOIN step_time USING (engine_id, step)
WHERE
    ($engine IS NULL OR engine_id = $engine)
    AND ($first_step IS NULL OR step >= $first_step)
    AND ($last_step IS NULL OR step <= $last_step)
ORDER BY engine_id, step
