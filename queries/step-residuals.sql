-- Which steps took longer, or shorter, than their tokens explain?
--
-- One row per step with its distance from the least-squares line of query step-regression through the steps of its own
-- composition: those that only decode, and those with any prefill (whole, chunked, or resumed after a preemption).
-- Steps without tokens, or whose results were never recorded, are left out, as there.
--
-- group: Scheduling
-- needs: step_schedule, step_update
-- param: skip_steps INTEGER = 0 | Leave out each engine's first steps up to this number, e.g. its warm-up.
-- words: slow, steps
-- key: step, composition, scheduled_tokens, own_ms, fitted_ms, residual_ms
-- worst: residual_ms
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step, counted from 1 in each engine.
-- column: composition derived | decode_only or with_prefill.
-- column: scheduled_tokens [tokens] derived | Tokens scheduled, all phases.
-- column: own_ms [ms] derived | Wall time that was its own (view step_time).
-- column: fitted_ms [ms] derived | What the line gives for its tokens; NULL where all steps have the same tokens.
-- column: residual_ms [ms] derived | own_ms - fitted_ms: above 0, it took longer.

WITH counted AS (
    SELECT
        engine_id,
        step,
        CASE WHEN scheduled_tokens = decode_tokens THEN 'decode_only' ELSE 'with_prefill' END
            AS composition,
        scheduled_tokens,
        own_ns / 1e6 AS own_ms
    FROM step JOIN step_time USING (engine_id, step)
    WHERE own_ns IS NOT NULL AND step > $skip_steps
), fit AS (
    SELECT
        engine_id,
        composition,
        CASE WHEN min(scheduled_tokens) < max(scheduled_tokens) THEN regr_slope(own_ms, scheduled_tokens) END
            AS slope,
        CASE WHEN min(scheduled_tokens) < max(scheduled_tokens) THEN regr_intercept(own_ms, scheduled_tokens) END
            AS intercept_ms
    FROM counted
    GROUP BY engine_id, composition
)
SELECT
    c.engine_id,
    c.step,
    c.composition,
    c.scheduled_tokens,
    c.own_ms,
    f.intercept_ms + f.slope * c.scheduled_tokens AS fitted_ms,
    c.own_ms - (f.intercept_ms + f.slope * c.scheduled_tokens) AS residual_ms
FROM counted c
JOIN fit f USING (engine_id, composition)
ORDER BY c.engine_id, c.step
