-- How full was the token budget of each forward pass, by what was batched?
--
-- One row per step with tokens, in order; with bucket_ms one row per bucket and kind of batch, averaged over its steps.
-- A batch is prefill (prompts, whole or in chunks, and tokens computed again after a preemption), decode, or mixed
-- (both). The budget is `max_num_batched_tokens`; what limits a decode batch is not this budget but the number of
-- requests.
--
-- group: Scheduling
-- figure: KV access study (IPDPS'25): fill of the token budget over forward passes, by batching mode.
-- needs: step_schedule
-- param: bucket_ms DOUBLE = 0 | Width of a bucket; 0 gives a row per step.
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- key: time_ns, step, batch, prefill_tokens, decode_tokens, filled_share
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When `schedule` returned, UNIX time; of a bucket, its first such step's.
-- column: step recorded | The step; of a bucket, its first such one.
-- column: batch derived | prefill, decode or mixed.
-- column: steps [steps] derived | Steps in the row.
-- column: chunked_steps [steps] derived | Of them, steps that computed a part of a prompt.
-- column: requests [requests] derived | Requests scheduled (mean).
-- column: prefill_tokens [tokens] derived | Tokens of prompts, or computed again (mean).
-- column: decode_tokens [tokens] recorded | Tokens of requests that generate (mean).
-- column: budget_tokens [tokens] recorded | Most tokens the step could have (mean).
-- column: filled_share [ratio] derived | Tokens scheduled over the budget.

WITH pass AS (
    SELECT
        engine_id, step, scheduled_ns, scheduled_requests, scheduled_tokens, decode_tokens, budget_tokens,
        chunked_prefill_tokens > 0 AS chunked,
        CASE WHEN decode_tokens = 0 THEN 'prefill' WHEN decode_tokens = scheduled_tokens THEN 'decode' ELSE 'mixed' END
            AS batch,
        CASE
            WHEN $bucket_ms > 0
                THEN (scheduled_ns - min(scheduled_ns) OVER (PARTITION BY engine_id)) // ($bucket_ms * 1e6)::BIGINT
            ELSE step
        END AS bucket
    FROM step
    WHERE scheduled_tokens > 0 AND ($engine IS NULL OR engine_id = $engine)
)
SELECT
    engine_id,
    min(scheduled_ns) AS time_ns,
    min(step) AS step,
    batch,
    count(*) AS steps,
    count_if(chunked)::BIGINT AS chunked_steps,
    avg(scheduled_requests) AS requests,
    avg(scheduled_tokens - decode_tokens) AS prefill_tokens,
    avg(decode_tokens) AS decode_tokens,
    avg(budget_tokens) AS budget_tokens,
    sum(scheduled_tokens) / sum(budget_tokens) AS filled_share
FROM pass
GROUP BY engine_id, bucket, batch
ORDER BY engine_id, time_ns, step, batch
