-- How does a step's wall time grow with the tokens scheduled in it?
--
-- A least-squares line through (scheduled_tokens, own time of view step_time) of each engine's steps: over all of them, over
-- those that only decode, and over those with any prefill (whole, chunked, or resumed after a preemption). Of the latter, those
-- without and with decoding requests beside it have a line each, too. Steps without tokens, or whose results were never
-- recorded, are left out. The slope says what a token costs, the intercept what a step costs before its first token; r2
-- says how far to trust both. NULL where all steps have the same tokens.
--
-- group: Scheduling
-- figure: 72-run policy study: step duration against tokens
-- needs: step_schedule, step_update
-- param: skip_steps INTEGER = 0 | Leave out each engine's first steps up to this number, e.g. its warm-up.
-- key: composition, steps, slope_us_per_token, intercept_ms, r2
-- column: engine_id recorded | The engine.
-- column: composition derived | all, decode_only, with_prefill; of the latter: prefill_only, mixed.
-- column: steps [steps] derived | Steps in the fit.
-- column: slope_us_per_token [us/token] derived | Wall time each further token adds (fitted).
-- column: intercept_ms [ms] derived | Wall time of a step at zero tokens (fitted, extrapolated).
-- column: r2 [ratio] derived | Share of the variance of wall time that the line explains, 0 to 1.
-- column: min_tokens [tokens] derived | Fewest tokens of a step in the fit.
-- column: max_tokens [tokens] derived | Most tokens of a step in the fit.
-- column: mean_tokens [tokens] derived | Mean tokens of a step in the fit.
-- column: mean_ms [ms] derived | Mean wall time of a step in the fit.

WITH observed AS (
    SELECT
        engine_id,
        unnest(CASE
            WHEN scheduled_tokens = decode_tokens THEN ['all', 'decode_only']
            WHEN decode_tokens = 0 THEN ['all', 'with_prefill', 'prefill_only']
            ELSE ['all', 'with_prefill', 'mixed']
        END) AS composition,
        scheduled_tokens AS tokens,
        own_ns
    FROM step JOIN step_time USING (engine_id, step)
    WHERE own_ns IS NOT NULL AND step > $skip_steps
), fitted AS (
    SELECT
        engine_id,
        composition,
        count(*) AS steps,
        -- The fit of equal x divides by zero; DuckDB versions differ in what they make of that.
        CASE WHEN min(tokens) < max(tokens) THEN regr_slope(own_ns, tokens) END AS slope_ns,
        CASE WHEN min(tokens) < max(tokens) THEN regr_intercept(own_ns, tokens) END AS intercept_ns,
        CASE WHEN min(tokens) < max(tokens) THEN regr_r2(own_ns, tokens) END AS r2,
        min(tokens) AS min_tokens,
        max(tokens) AS max_tokens,
        avg(tokens) AS mean_tokens,
        avg(own_ns) AS mean_ns
    FROM observed
    GROUP BY engine_id, composition
)
SELECT
    engine_id,
    composition,
    steps,
    slope_ns / 1e3 AS slope_us_per_token,
    intercept_ns / 1e6 AS intercept_ms,
    r2,
    min_tokens,
    max_tokens,
    mean_tokens,
    mean_ns / 1e6 AS mean_ms
FROM fitted
ORDER BY engine_id, composition
