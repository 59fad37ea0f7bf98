-- How many scheduler steps did a turn take, against the fewest it could?
--
-- One row per turn number, over completed turns. A turn needs a step for its prompt, which gives the first output
-- token, and one more for each further token: as many steps as output tokens (the study's 1 + output tokens counts the
-- first token's step twice). Chunked prompts and preemptions take more steps; accepted drafts take fewer. Steps sat out
-- are those of the engine between a turn's first and last in which it was not scheduled.
--
-- group: Scheduling
-- figure: 72-run policy study: steps per turn against the minimum
-- needs: request, step_request
-- key: turn_number, turns, mean_min_steps, mean_steps, step_ratio
-- column: turn_number derived | The turn's place in its job, counted from 1.
-- column: turns derived | Completed turns.
-- column: mean_output_tokens [tokens] derived | Mean output tokens.
-- column: mean_min_steps [steps] derived | Mean of the fewest steps: output tokens, at least one.
-- column: mean_steps [steps] derived | Mean steps in which it was scheduled.
-- column: step_ratio [ratio] derived | All steps over the fewest.
-- column: turns_at_minimum derived | Turns that took no more than the fewest.
-- column: mean_prefill_steps [steps] derived | Of mean_steps: that computed its prompt, whole or a chunk.
-- column: mean_resumed_steps [steps] derived | Of mean_steps: that computed tokens after a preemption.
-- column: mean_decode_steps [steps] derived | Of mean_steps: that generated.
-- column: mean_sat_out_steps [steps] derived | Mean steps sat out.
-- setting: jobs_per_s

WITH share AS (
    SELECT
        request,
        count(*) AS steps,
        count(*) FILTER (phase IN ('prefill', 'chunked_prefill')) AS prefill_steps,
        count(*) FILTER (phase = 'resumed') AS resumed_steps,
        count(*) FILTER (phase = 'decode') AS decode_steps,
        max(step) - min(step) + 1 - count(*) AS sat_out_steps
    FROM step_request
    GROUP BY request
), turns AS (
    SELECT t.turn_number, t.client_request, greatest(r.output_tokens, 1) AS min_steps, r.output_tokens, share.*
    FROM job_turn t JOIN request r USING (request) JOIN share USING (request)
    WHERE t.completed
), counted AS (
    SELECT
        turn_number,
        count(DISTINCT client_request) AS turns,
        avg(output_tokens) AS mean_output_tokens,
        avg(min_steps) AS mean_min_steps,
        avg(steps) AS mean_steps,
        sum(steps) / sum(min_steps) AS step_ratio,
        count(*) FILTER (steps <= min_steps) AS turns_at_minimum,
        avg(prefill_steps) AS mean_prefill_steps,
        avg(resumed_steps) AS mean_resumed_steps,
        avg(decode_steps) AS mean_decode_steps,
        avg(sat_out_steps) AS mean_sat_out_steps
    FROM turns
    GROUP BY turn_number
)
SELECT
    counted.*,
    s.policy, s.jobs_per_s, s.blocks, s.block_size_tokens, s.cache_mode
FROM counted, run_setting s
ORDER BY turn_number
