-- What does computing a token cost in this run, and how well is that known?
--
-- The fits behind every price in milliseconds. A step's wall time is fitted, by ordinary least squares, as
-- intercept + tokens * per token + (sum of the contexts its tokens attend to) * per context. The price of n tokens after c
-- others is then n * per token + (n * c + n * (n + 1) / 2) * per context: the intercept is not in it, since the step would
-- mostly have run anyway. Outliers of a first fit are left out and counted. See r2 before believing a price.
--
-- group: Scheduling
-- needs: cost_model
-- key: composition, used, steps, us_per_token, intercept_ms, r2
-- column: engine_id recorded | The engine.
-- column: composition derived | The steps in the fit: all, decode_only or with_prefill.
-- column: used derived | This fit gives the prices of this trace.
-- column: steps [steps] derived | Steps in the fit.
-- column: left_out_steps [steps] derived | Outliers of a first fit, left out.
-- column: intercept_ms [ms] derived | Wall time of a step before its first token (fitted).
-- column: us_per_token [us/token] derived | What a further token adds (fitted).
-- column: us_per_1k_context [us/token] derived | What a thousand tokens of context add to a token (fitted).
-- column: price_1k_ms [ms] derived | Price of a thousand tokens that nothing precedes.
-- column: r2 [ratio] derived | Share of the variance of wall time that the fit explains.
-- column: rmse_ms [ms] derived | Root of the mean squared residual.
-- column: min_tokens [tokens] derived | Fewest tokens of a step in the fit.
-- column: max_tokens [tokens] derived | Most tokens of a step in the fit.

SELECT
    engine_id,
    composition,
    used,
    steps,
    left_out_steps,
    intercept_ns / 1e6 AS intercept_ms,
    ns_per_token / 1e3 AS us_per_token,
    ns_per_token_context AS us_per_1k_context,
    CASE WHEN ns_per_token > 0 THEN (1000 * ns_per_token + 500500 * ns_per_token_context) / 1e6 END AS price_1k_ms,
    r2,
    rmse_ns / 1e6 AS rmse_ms,
    min_tokens,
    max_tokens
FROM cost_model
ORDER BY engine_id, composition
