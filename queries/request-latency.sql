-- Where did each request's time go: the API process, the queue, prefill or decode?
--
-- One row per request, in order of arrival. frontend_ms + queue_ms + prefill_ms + decode_ms = total_ms for a request
-- that generated and ended. A part whose beginning or end was not recorded is NULL. These times are those at which the
-- scheduler saw a token. What came after that, in the API process, is first_output_ms and output_ms: until it had written
-- the token to the client's connection. total_ms + output_ms is what a client saw, but for the network. Both are NULL
-- without an API server, and where records are of an older kvtrace.
--
-- A request with n > 1 has a row for the client's request (`samples`), and one for each sample as its engine saw it
-- (`parent`). The client's lasts from the first sample's times to the last one's, and its output tokens are theirs
-- together; the parts add up there, too. What came after the engine is in the client's row alone.
--
-- group: Requests and jobs
-- needs: request
-- words: why, slow, slowest, latency, time, ttft, tpot
-- key: request, session, turn, queue_ms, prefill_ms, decode_ms, output_ms, total_ms, finish_reason
-- worst: total_ms
-- column: engine_id recorded | The engine that served it.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: parent derived | Of a sample of a request with n > 1: the client's request.
-- column: sample derived | Of a sample: its number, from 0.
-- column: samples derived | Of a client's request with n > 1: its samples.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: tenant recorded | Tenant, if the client told one.
-- column: lora recorded | LoRA adapter; NULL for the base model.
-- column: arrival_ns [ns] recorded | vLLM's arrival time, UNIX time.
-- column: prompt_tokens [tokens] recorded | Prompt length.
-- column: output_tokens [tokens] recorded | Output tokens.
-- column: frontend_ms [ms] derived | From arrival to the scheduler's queue. The two ends are read on different clocks.
-- column: queue_ms [ms] derived | From the queue to the first admission.
-- column: prefill_ms [ms] derived | From the first admission to the first token.
-- column: decode_ms [ms] derived | From the first token to the end.
-- column: total_ms [ms] derived | From arrival to the end in the engine, without output_ms.
-- column: ttft_ms [ms] derived | From arrival to the first token.
-- column: tpot_ms [ms/token] derived | decode_ms over the output tokens after the first; NULL with one token,
--     and of several samples together.
-- column: first_output_ms [ms] derived | From the first token to when the API process had handed it on; NULL with one output,
--     as without streaming. The two ends are read on different clocks.
-- column: output_ms [ms] derived | From the end in the engine to when the API process had handed on the last output; NULL of
--     aborted requests. The two ends are read on different clocks.
-- column: preemptions recorded | Times it was preempted.
-- column: preempted_ms [ms] derived | Time it was out of the batch after preemptions; a part of prefill_ms and
--     decode_ms. Of samples together, it may be longer.
-- column: finish_reason recorded | Why it ended; NULL if it had not when the recording did, or where samples differ.

WITH turn AS (
    SELECT request, op, time_ns, lead(time_ns) OVER (PARTITION BY request ORDER BY time_ns, rowid) AS next_ns
    FROM request_event
    WHERE op IN ('preempt', 'resume', 'finish')
), out_of_batch AS (
    SELECT request, sum(next_ns - time_ns)::BIGINT AS preempted_ns FROM turn WHERE op = 'preempt' GROUP BY request
), delivery AS (
    SELECT request, min(first_ns) AS first_ns, max(time_ns) AS time_ns FROM request_delivery GROUP BY request
), sampled AS (
    SELECT
        s.parent,
        count(*) AS samples,
        min(session) AS session,
        min(turn) AS turn,
        min(arrival_ns) AS arrival_ns,
        min(queued_ns) AS queued_ns,
        min(scheduled_ns) AS scheduled_ns,
        min(first_token_ns) AS first_token_ns,
        CASE WHEN count(finished_ns) = count(*) THEN max(finished_ns) END AS finished_ns,
        max(prompt_tokens) AS prompt_tokens,
        sum(output_tokens)::INTEGER AS output_tokens,
        sum(preemptions)::INTEGER AS preemptions,
        sum(preempted_ns)::BIGINT AS preempted_ns,
        CASE WHEN count(finish_reason) = count(*) AND count(DISTINCT finish_reason) = 1 THEN min(finish_reason) END
            AS finish_reason
    FROM request_sample s JOIN request r USING (request) LEFT JOIN out_of_batch USING (request)
    GROUP BY s.parent
), life AS (
    SELECT
        r.engine_id,
        r.request,
        r.external_id,
        s.parent,
        s.sample,
        c.samples,
        coalesce(r.session, c.session) AS session,
        coalesce(r.turn, c.turn) AS turn,
        r.tenant,
        r.lora,
        coalesce(r.arrival_ns, c.arrival_ns) AS arrival_ns,
        coalesce(r.queued_ns, c.queued_ns) AS queued_ns,
        coalesce(r.scheduled_ns, c.scheduled_ns) AS scheduled_ns,
        coalesce(r.first_token_ns, c.first_token_ns) AS first_token_ns,
        coalesce(r.finished_ns, c.finished_ns) AS finished_ns,
        coalesce(r.prompt_tokens, c.prompt_tokens) AS prompt_tokens,
        coalesce(r.output_tokens, c.output_tokens) AS output_tokens,
        coalesce(c.preemptions, r.preemptions) AS preemptions,
        coalesce(c.preempted_ns, o.preempted_ns) AS preempted_ns,
        coalesce(r.finish_reason, c.finish_reason) AS finish_reason
    FROM request r
    LEFT JOIN request_sample s ON s.request = r.request
    LEFT JOIN sampled c ON c.parent = r.request
    LEFT JOIN out_of_batch o ON o.request = r.request
)
SELECT
    r.engine_id,
    r.request,
    r.external_id,
    r.parent,
    r.sample,
    r.samples,
    r.session,
    r.turn,
    r.tenant,
    r.lora,
    r.arrival_ns,
    r.prompt_tokens,
    r.output_tokens,
    (r.queued_ns - r.arrival_ns) / 1e6 AS frontend_ms,
    (r.scheduled_ns - r.queued_ns) / 1e6 AS queue_ms,
    (r.first_token_ns - r.scheduled_ns) / 1e6 AS prefill_ms,
    (r.finished_ns - r.first_token_ns) / 1e6 AS decode_ms,
    (r.finished_ns - r.arrival_ns) / 1e6 AS total_ms,
    (r.first_token_ns - r.arrival_ns) / 1e6 AS ttft_ms,
    CASE
        WHEN r.samples IS NULL AND r.output_tokens > 1
            THEN (r.finished_ns - r.first_token_ns) / 1e6 / (r.output_tokens - 1)
    END AS tpot_ms,
    (d.first_ns - r.first_token_ns) / 1e6 AS first_output_ms,
    CASE WHEN r.finish_reason <> 'abort' THEN (d.time_ns - r.finished_ns) / 1e6 END AS output_ms,
    r.preemptions,
    CASE WHEN r.preemptions = 0 THEN 0 ELSE r.preempted_ns / 1e6 END AS preempted_ms,
    r.finish_reason
FROM life r
LEFT JOIN delivery d ON d.request = r.request
ORDER BY coalesce(r.arrival_ns, r.queued_ns), r.request
