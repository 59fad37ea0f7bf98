-- How long did the GPU wait for the host between decoding steps?
--
-- One row per engine, worker and size of step, of steps that only decode, as the step before did; sizes go by powers of two.
-- Between the attention of two steps the GPU computes the end of one pass and the begin of the next: the last layer's rest,
-- sampling, embedding. In steps of a size that takes the same time, so the shortest twentieth of the gaps tells how long. In what
-- gaps are longer than that, the GPU waited: most likely for the engine, which schedules and launches, and then a faster processor
-- or larger batches help more than a faster GPU. Passes without full CUDA graphs are launched layer by layer; waits within them are
-- not counted, nor those behind prompts, whose last layer takes longer.
--
-- group: GPU
-- needs: kv_window, step_schedule
-- words: host, cpu, bound, idle, slow, gap, launch
-- key: from_tokens, to_tokens, steps, least_gap_ms, median_gap_ms, held_steps, waited_ms, waited_share
-- param: idle_ms DOUBLE = 20 | An engine was idle if a step began so long after the results of the step before it.
-- param: over_ms DOUBLE = 0.2 | A step was held up if its gap is so much longer than the least.
-- param: at_least_steps INTEGER = 20 | Leave out sizes with fewer steps.
-- column: engine_id recorded | The engine.
-- column: process_id recorded | The worker.
-- column: from_tokens [tokens] recorded | Tokens of the smallest of these steps.
-- column: to_tokens [tokens] recorded | Tokens of the largest.
-- column: steps [steps] derived | Such steps, of an engine that was not idle before.
-- column: least_gap_ms [ms] derived | The gap that a twentieth of them is not longer than, from the last attention of the step before to
--     the first of this one.
-- column: median_gap_ms [ms] derived | Median gap.
-- column: longest_gap_ms [ms] derived | The gap that a twentieth of them is longer than.
-- column: held_steps [steps] inferred | Steps that were held up.
-- column: waited_ms [ms] inferred | What their gaps are longer than the least, together.
-- column: waited_share [ratio] inferred | Of the time from the step before to each of these steps.

WITH pass AS (
    SELECT engine_id, process_id, step, min(start_ns) AS first_ns, max(end_ns) AS last_ns
    FROM kv_window
    GROUP BY engine_id, process_id, step
), begun AS (
    SELECT
        p.engine_id,
        p.process_id,
        s.scheduled_tokens AS tokens,
        s.decode_tokens,
        lag(s.scheduled_tokens) OVER w AS before_tokens,
        lag(s.decode_tokens) OVER w AS before_decode_tokens,
        p.first_ns - lag(p.last_ns) OVER w AS gap_ns,
        p.first_ns - lag(p.first_ns) OVER w AS period_ns,
        s.start_ns - lag(s.update_ns) OVER w AS since_ns
    FROM pass p
    JOIN step s ON s.engine_id = p.engine_id AND s.step = p.step
    WINDOW w AS (PARTITION BY p.engine_id, p.process_id ORDER BY p.step)
), decoding AS (
    SELECT engine_id, process_id, tokens, gap_ns, period_ns, floor(log2(tokens)) AS size
    FROM begun
    WHERE
        tokens > 0
        AND decode_tokens = tokens
        AND before_decode_tokens = before_tokens
        AND coalesce(since_ns < $idle_ms * 1e6, true)
), least AS (
    SELECT engine_id, process_id, size, quantile_cont(gap_ns, 0.05) AS least_ns
    FROM decoding
    GROUP BY engine_id, process_id, size
    HAVING count(*) >= $at_least_steps
), held AS (
    SELECT d.*, l.least_ns, CASE WHEN d.gap_ns > l.least_ns + $over_ms * 1e6 THEN d.gap_ns - l.least_ns END AS waited_ns
    FROM decoding d
    JOIN least l ON l.engine_id = d.engine_id AND l.process_id = d.process_id AND l.size = d.size
)
SELECT
    engine_id,
    process_id,
    min(tokens) AS from_tokens,
    max(tokens) AS to_tokens,
    count(*) AS steps,
    min(least_ns) / 1e6 AS least_gap_ms,
    quantile_cont(gap_ns, 0.5) / 1e6 AS median_gap_ms,
    quantile_cont(gap_ns, 0.95) / 1e6 AS longest_gap_ms,
    count(waited_ns) AS held_steps,
    coalesce(sum(waited_ns), 0) / 1e6 AS waited_ms,
    coalesce(sum(waited_ns), 0) / nullif(sum(period_ns), 0) AS waited_share
FROM held
GROUP BY engine_id, process_id, size
ORDER BY engine_id, process_id, from_tokens
