-- What latency did clients see, and how much of it was not the engine's?
--
-- One row per request of a client, in order of sending. A client's times include everything between it and the engine:
-- serialisation, the API process, the delivery of every token. Clients and engine must share a host, or have
-- synchronised clocks. NULL where a request got no token, or the engine's part was not recorded.
--
-- group: Requests and jobs
-- needs: client_request
-- words: api, server, bottleneck, frontend, sdk
-- key: request_id, session, turn, ttft_ms, turn_ms, ttft_outside_ms, error
-- worst: turn_ms
-- column: request recorded | Key of table `request`; NULL if no engine is known to have had it.
-- column: request_id recorded | The id the client knows.
-- column: workload recorded | The workload it belongs to.
-- column: phase recorded | Which of the workloads of the run, from 0.
-- column: session recorded | The job.
-- column: turn recorded | The job's turn.
-- column: last recorded | The job has no further turn.
-- column: send_ns [ns] recorded | When it was sent, UNIX time.
-- column: late_ms [ms] derived | How long after its time the client sent it.
-- column: ttft_ms [ms] derived | From sending to the first token.
-- column: inter_token_ms [ms/token] derived | Mean time between output tokens; NULL with one.
-- column: longest_gap_ms [ms] derived | Longest time between two output tokens; NULL if the client did not note each.
-- column: turn_ms [ms] derived | From sending to the last token.
-- column: jct_ms [ms] derived | The job's completion time: from when its first turn was due to the end of its last. Only in
--     the row of a job's last turn, and only if none of its turns failed.
-- column: engine_ttft_ms [ms] derived | From the scheduler's queue to the first token, in the engine.
-- column: ttft_outside_ms [ms] derived | ttft_ms - engine_ttft_ms: the part of it outside the scheduler.
-- column: engine_turn_ms [ms] derived | From the scheduler's queue to the end, in the engine.
-- column: turn_outside_ms [ms] derived | turn_ms - engine_turn_ms.
-- column: error recorded | Why it failed.

WITH job AS (
    SELECT phase, session, min(coalesce(due_ns, send_ns)) AS start_ns, count(error) AS failures
    FROM client_request WHERE session IS NOT NULL GROUP BY phase, session
)
SELECT
    c.request,
    c.request_id,
    c.workload,
    c.phase,
    c.session,
    c.turn,
    c.last,
    c.send_ns,
    (c.send_ns - c.due_ns) / 1e6 AS late_ms,
    (c.first_token_ns - c.send_ns) / 1e6 AS ttft_ms,
    CASE WHEN c.output_tokens > 1 THEN (c.last_token_ns - c.first_token_ns) / 1e6 / (c.output_tokens - 1) END
        AS inter_token_ms,
    list_max(list_transform(
        range(2, array_length(c.token_ns) + 1), LAMBDA i: c.token_ns[i] - c.token_ns[i - 1]
    )) / 1e6 AS longest_gap_ms,
    (c.last_token_ns - c.send_ns) / 1e6 AS turn_ms,
    CASE WHEN c.last AND j.failures = 0 THEN (c.last_token_ns - j.start_ns) / 1e6 END AS jct_ms,
    (r.first_token_ns - r.queued_ns) / 1e6 AS engine_ttft_ms,
    (c.first_token_ns - c.send_ns - (r.first_token_ns - r.queued_ns)) / 1e6 AS ttft_outside_ms,
    (r.finished_ns - r.queued_ns) / 1e6 AS engine_turn_ms,
    (c.last_token_ns - c.send_ns - (r.finished_ns - r.queued_ns)) / 1e6 AS turn_outside_ms,
    c.error
FROM client_request c
LEFT JOIN job j ON j.session = c.session AND j.phase IS NOT DISTINCT FROM c.phase
LEFT JOIN request r ON r.request = c.request
ORDER BY c.send_ns, c.request_id
