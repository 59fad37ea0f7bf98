-- A step with tokens other than decode tokens, and the wall time that they added.
--
-- Under async scheduling a step is scheduled and launched before the results of the step before it are processed. A slow
-- launch delays those results, so view step counts it in interval_ns of the step before. added_ns therefore holds two
-- intervals against usual_ns: this step's, and that of the step before if it overlaps this one and has decode tokens only.
-- A step before without any tokens counts in full. usual_ns is the median interval_ns of steps that have decode tokens only
-- and are not followed by a step with others, among the 50 steps with tokens before and the 50 after. If two steps with
-- other tokens follow each other, the launch of the second counts for the first.
--
-- needs: step
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: tokens [tokens] derived | Its tokens other than decode tokens.
-- column: usual_ns [ns] derived | Wall time that a step with decode tokens only added at that time; NULL if there was none.
-- column: added_ns [ns] derived | What both intervals exceed usual_ns by; below 0 if they were shorter. Without usual_ns it
--     is this step's interval_ns, with that of a step before without tokens.

WITH near AS (
    SELECT
        engine_id,
        step,
        interval_ns,
        scheduled_tokens,
        scheduled_tokens - decode_tokens AS tokens,
        lead(scheduled_tokens - decode_tokens, 1, 0) OVER steps AS next_tokens,
        lag(scheduled_tokens - decode_tokens) OVER steps = 0 AND start_ns < lag(end_ns) OVER steps AS holds_launch,
        lag(scheduled_tokens) OVER steps AS before_scheduled_tokens,
        lag(interval_ns) OVER steps AS before_ns
    FROM step
    WINDOW steps AS (PARTITION BY engine_id ORDER BY step)
), compared AS (
    SELECT
        *,
        -- Not median: that of Spark takes no frame.
        quantile_cont(CASE WHEN tokens = 0 AND next_tokens = 0 THEN interval_ns END, 0.5) OVER (
            PARTITION BY engine_id ORDER BY step ROWS BETWEEN 50 PRECEDING AND 50 FOLLOWING
        )::BIGINT AS usual_ns
    FROM near
    WHERE scheduled_tokens > 0
)
SELECT
    engine_id,
    step,
    tokens,
    usual_ns,
    interval_ns - coalesce(usual_ns, 0) + CASE
        WHEN holds_launch THEN coalesce(before_ns - CASE WHEN before_scheduled_tokens > 0 THEN usual_ns ELSE 0 END, 0)
        ELSE 0
    END AS added_ns
FROM compared
WHERE tokens > 0
