-- A step with tokens, and the wall time that was its own.
--
-- Under async scheduling a step is scheduled and launched before the results of the step before it are processed. A slow
-- launch delays those results, so view step counts it in interval_ns of the step before. Here it counts for the step that
-- was launched: if a step has decode tokens only, and one with other tokens was launched before its end, then usual_ns is its
-- own and launch_ns, the rest of its interval, goes to the next. All of it goes there if it has no tokens at all. The sum of
-- own_ns is therefore that of interval_ns, with the steps without tokens that such a launch delayed. Where two steps with other
-- tokens follow each other, the launch of the second stays with the first: without a usual time nothing tells them apart.
--
-- needs: step
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: tokens [tokens] derived | Its tokens other than decode tokens; NULL if phases are unknown.
-- column: usual_ns [ns] derived | Median interval_ns of steps that have decode tokens only and are not followed by a step with
--     others, among the 50 steps with tokens before and the 50 after; NULL if there was none.
-- column: launch_ns [ns] derived | What it takes over from interval_ns of the step before; below 0 if that was shorter than
--     usual. 0 for most steps.
-- column: own_ns [ns] derived | Its interval_ns with launch_ns, and without what the next step takes over; NULL without results.
-- column: added_ns [ns] derived | What own_ns exceeds usual_ns by, or all of it without usual_ns; NULL if it has decode tokens
--     only.

WITH told AS (
    SELECT *, scheduled_tokens::BIGINT - decode_tokens AS tokens FROM step
), near AS (
    SELECT
        engine_id,
        step,
        interval_ns,
        scheduled_tokens,
        tokens,
        lead(tokens, 1, 0) OVER steps AS next_tokens,
        lag(tokens) OVER steps = 0 AND start_ns < lag(end_ns) OVER steps AS follows_decode,
        lag(scheduled_tokens) OVER steps AS before_scheduled_tokens,
        lag(interval_ns) OVER steps AS before_ns
    FROM told
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
), launched AS (
    SELECT
        *,
        CASE
            WHEN tokens > 0 AND follows_decode
                THEN coalesce(before_ns - CASE WHEN before_scheduled_tokens > 0 THEN usual_ns ELSE 0 END, 0)
            ELSE 0
        END AS launch_ns
    FROM compared
), owned AS (
    SELECT
        *,
        interval_ns + launch_ns - CASE
            WHEN lead(before_scheduled_tokens) OVER steps > 0 THEN lead(launch_ns) OVER steps ELSE 0
        END AS own_ns
    FROM launched
    WINDOW steps AS (PARTITION BY engine_id ORDER BY step)
)
SELECT
    engine_id,
    step,
    tokens,
    usual_ns,
    launch_ns,
    own_ns,
    CASE WHEN tokens > 0 THEN own_ns - coalesce(usual_ns, 0) END AS added_ns
FROM owned
