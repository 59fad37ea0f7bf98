-- A scheduler step, from `schedule` to its results.
--
-- It is step_schedule joined with step_update.
--
-- needs: step_schedule, step_update
-- columns: step_schedule
-- column: update_ns [ns] recorded | When the model's output was there; NULL if the recording ended before.
-- column: end_ns [ns] recorded | When the results were processed.
-- column: duration_ns [ns] derived | end_ns - start_ns. Steps overlap under async scheduling.
-- column: interval_ns [ns] derived | Wall time the step added: end_ns - max(start_ns, end_ns of the step before).
-- column: scheduled_requests [requests] derived | Requests scheduled, all phases.
-- column: scheduled_tokens [tokens] derived | Tokens scheduled, all phases.
-- column: output_tokens [tokens] recorded | Tokens the model returned.
-- column: finished_requests [requests] recorded | Requests that ended with it.

SELECT
    s.*, u.update_ns, u.end_ns,
    u.end_ns - s.start_ns AS duration_ns,
    u.end_ns - greatest(s.start_ns, lag(u.end_ns) OVER (PARTITION BY s.engine_id ORDER BY s.step))
        AS interval_ns,
    -- A damaged recording may hold any number.
    try_cast(
        s.prefill_requests::BIGINT + s.chunked_prefill_requests + s.decode_requests + s.resumed_requests AS INTEGER
    ) AS scheduled_requests,
    try_cast(
        coalesce(
            s.prefill_tokens::BIGINT + s.chunked_prefill_tokens + s.decode_tokens + s.resumed_tokens,
            s.budget_tokens::BIGINT - s.budget_left_tokens
        ) AS INTEGER
    ) AS scheduled_tokens,
    u.output_tokens, u.finished_requests
FROM step_schedule s LEFT JOIN step_update u USING (engine_id, step)
