-- What did each request's decoding take its time for: its own steps, others' prefills beside it, preemptions?
--
-- One row per request that generated more than one token and ended. A step's time is the wall time that was its own (view
-- step_time); the launch of the next step counts for the step before if that was the request's last, and is left out if it
-- was the one of the first token.
-- decode_only_ms + with_prefill_ms + recompute_ms + preempted_ms + other_ms = decode_ms; other_ms is what is left: time
-- between steps and steps that left it out. That a step with prefills is slower because of
-- them is derived: slower_ms holds its time against the request's own steps without.
--
-- group: Requests and jobs
-- needs: request, step_request, step_update
-- words: slow, decode, decoding, tpot, itl, interference, prefill, batch, why
-- key: request, session, turn, tpot_ms, decode_ms, with_prefill_ms, slower_ms, preempted_ms, batch_requests
-- worst: decode_ms
-- column: engine_id recorded | The engine that served it.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: output_tokens [tokens] recorded | Output tokens.
-- column: decode_ms [ms] derived | From the first token to the end.
-- column: tpot_ms [ms/token] derived | decode_ms over the output tokens after the first.
-- column: decode_steps [steps] derived | Steps that generated for it, after the one of the first token.
-- column: decode_only_ms [ms] derived | Time of those in which all requests generated.
-- column: prefill_steps [steps] derived | Those in which others' prompts were computed, too, also again after a preemption.
-- column: prefill_tokens [tokens] derived | Tokens of these prompts.
-- column: with_prefill_ms [ms] derived | Time of these steps.
-- column: slower_ms [ms] derived | What they took more than as many steps of the median of its other ones; NULL without
--     other ones.
-- column: step_ms [ms] derived | Median time of its steps in which all requests generated.
-- column: recompute_ms [ms] derived | Time of steps that computed its own KV again after a preemption.
-- column: preempted_ms [ms] derived | Time it was out of the batch after preemptions.
-- column: other_ms [ms] derived | The rest of decode_ms; slightly below 0 where its last step ended after it.
-- column: preemptions recorded | Times it was preempted while it generated.
-- column: batch_requests [requests] derived | Requests in the batch in the steps that generated for it, mean.
-- column: batch_tokens [tokens] derived | Tokens of the batch in these steps, mean.

WITH life AS (
    SELECT engine_id, request, external_id, session, turn, output_tokens, first_token_ns, finished_ns
    FROM request
    WHERE finished_ns IS NOT NULL AND first_token_ns IS NOT NULL AND output_tokens > 1
), own AS (
    SELECT
        q.request,
        q.phase = 'resumed' AS again,
        s.scheduled_requests,
        s.scheduled_tokens,
        -- The step before, or the one after, may not be one of this request's.
        s.interval_ns
        + CASE WHEN lag(s.step) OVER own = s.step - 1 THEN t.launch_ns ELSE 0 END
        - CASE WHEN lead(s.step) OVER own = s.step + 1 THEN lead(t.launch_ns) OVER own ELSE 0 END
            AS own_ns,
        s.scheduled_tokens - s.decode_tokens - CASE WHEN q.phase = 'decode' THEN 0 ELSE q.scheduled_tokens END
            AS prefill_tokens
    FROM life l
    JOIN step_request q ON q.request = l.request
    JOIN step s ON s.engine_id = q.engine_id AND s.step = q.step
    JOIN step_time t ON t.engine_id = q.engine_id AND t.step = q.step
    -- Under async scheduling a step may be under way for a request that has ended.
    WHERE
        q.phase IN ('decode', 'resumed')
        AND s.end_ns > l.first_token_ns
        AND coalesce(s.update_ns, s.start_ns) <= l.finished_ns
    WINDOW own AS (PARTITION BY q.request ORDER BY q.step)
), counted AS (
    SELECT
        request,
        count(*) FILTER (NOT again) AS decode_steps,
        sum(CASE WHEN NOT again AND prefill_tokens = 0 THEN own_ns ELSE 0 END)::BIGINT AS decode_only_ns,
        count(*) FILTER (NOT again AND prefill_tokens > 0) AS prefill_steps,
        sum(CASE WHEN NOT again THEN prefill_tokens ELSE 0 END)::BIGINT AS prefill_tokens,
        sum(CASE WHEN NOT again AND prefill_tokens > 0 THEN own_ns ELSE 0 END)::BIGINT AS with_prefill_ns,
        quantile_cont(CASE WHEN NOT again AND prefill_tokens = 0 THEN own_ns END, 0.5) AS step_ns,
        sum(CASE WHEN again THEN own_ns ELSE 0 END)::BIGINT AS recompute_ns,
        avg(CASE WHEN NOT again THEN scheduled_requests END) AS batch_requests,
        avg(CASE WHEN NOT again THEN scheduled_tokens END) AS batch_tokens
    FROM own
    GROUP BY request
), out_of_batch AS (
    SELECT
        p.request,
        count(*) AS preemptions,
        sum(coalesce(p.resume_ns, l.finished_ns) - p.time_ns)::BIGINT AS preempted_ns
    FROM preemption p
    JOIN life l ON l.request = p.request
    WHERE p.time_ns >= l.first_token_ns
    GROUP BY p.request
)
SELECT
    l.engine_id,
    l.request,
    l.external_id,
    l.session,
    l.turn,
    l.output_tokens,
    (l.finished_ns - l.first_token_ns) / 1e6 AS decode_ms,
    (l.finished_ns - l.first_token_ns) / 1e6 / (l.output_tokens - 1) AS tpot_ms,
    c.decode_steps,
    c.decode_only_ns / 1e6 AS decode_only_ms,
    c.prefill_steps,
    c.prefill_tokens,
    c.with_prefill_ns / 1e6 AS with_prefill_ms,
    (c.with_prefill_ns - c.prefill_steps * c.step_ns) / 1e6 AS slower_ms,
    c.step_ns / 1e6 AS step_ms,
    c.recompute_ns / 1e6 AS recompute_ms,
    coalesce(o.preempted_ns, 0) / 1e6 AS preempted_ms,
    (
        l.finished_ns - l.first_token_ns - c.decode_only_ns - c.with_prefill_ns - c.recompute_ns
        - coalesce(o.preempted_ns, 0)
    ) / 1e6 AS other_ms,
    coalesce(o.preemptions, 0) AS preemptions,
    c.batch_requests,
    c.batch_tokens
FROM life l
JOIN counted c ON c.request = l.request
LEFT JOIN out_of_batch o ON o.request = l.request
ORDER BY l.engine_id, l.first_token_ns, l.request
