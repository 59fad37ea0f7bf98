-- A turn of a job: a request with a session tag; with n > 1 a row a sample.
--
-- needs: request, request_sample
-- column: request recorded | The request.
-- column: engine_id recorded | The engine that served it.
-- column: session recorded | The job: its session tag.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: client_request derived | The client's request: of a sample of one with n > 1 its parent, else the request itself.
-- column: turn_number derived | Its place in the job, counted from 1: by the turn tag, without one by arrival. Requests
--     of one tag share it, and samples of one request.
-- column: arrival_ns [ns] recorded | When it arrived.
-- column: finished_ns [ns] recorded | When it ended; NULL if it had not when the recording did.
-- column: duration_ns [ns] derived | finished_ns - arrival_ns: the turn's duration.
-- column: completed derived | It ended, and not by an abort, an error or a refusal.

SELECT
    request, engine_id, session, turn, coalesce(s.parent, request) AS client_request,
    dense_rank() OVER (PARTITION BY
        session ORDER BY turn NULLS LAST,
    CASE WHEN turn IS NULL THEN coalesce(arrival_ns, queued_ns) END,
    CASE WHEN turn IS NULL THEN coalesce(s.parent, request) END) AS turn_number,
    coalesce(arrival_ns, queued_ns) AS arrival_ns, finished_ns,
    finished_ns - coalesce(arrival_ns, queued_ns) AS duration_ns,
    finished_ns IS NOT NULL AND coalesce(finish_reason NOT IN ('abort', 'ignored', 'error'), true) AS completed
FROM request LEFT JOIN request_sample s USING (request) WHERE session IS NOT NULL
