-- How long did each request wait behind others, and how long at the head of the queue?
--
-- One row per request that waited for its first admission, request at the queue's head and reason. After each step's
-- scheduling the trace has the head and why it was not admitted; that holds until the next step has been scheduled. The
-- rows of a request add up to queue_ms of request-latency. Of a request that was never admitted they last until it ended,
-- or the recording's last step. Waits after a preemption are in preemptions.
--
-- group: Scheduling
-- needs: request, step_schedule
-- words: queue, queued, waiting, wait, behind, head, slow, why
-- key: request, session, turn, place, wait_ms, head_request, admission_limit
-- worst: wait_ms
-- param: request INTEGER = NULL | Only this request; all if NULL.
-- column: engine_id recorded | The engine.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: place derived | head: it was the queue's head. behind: another one was. arrived: no step had been scheduled since it
--     came. skipped: steps were scheduled without a head that waits, as while it waits for a grammar or a remote load.
-- column: head_request recorded | The request at the head; NULL if there was none.
-- column: admission_limit inferred | Why the head was not admitted.
-- column: first_step recorded | The first of these steps.
-- column: steps [steps] derived | Steps that left it waiting so.
-- column: wait_ms [ms] derived | Time that it waited so.

WITH last_step AS (
    SELECT engine_id, max(scheduled_ns) AS time_ns FROM step_schedule GROUP BY engine_id
), wait AS (
    SELECT
        r.engine_id, r.request, r.external_id, r.session, r.turn, r.queued_ns AS begin_ns,
        coalesce(r.scheduled_ns, r.finished_ns, l.time_ns) AS end_ns
    FROM request r
    LEFT JOIN last_step l ON l.engine_id = r.engine_id
    WHERE r.queued_ns IS NOT NULL AND ($request IS NULL OR r.request = $request)
), moment AS (
    SELECT
        engine_id, step, limit_request AS head_request, admission_limit::VARCHAR AS admission_limit,
        scheduled_ns AS begin_ns,
        lead(scheduled_ns) OVER life AS end_ns,
        row_number() OVER life AS n
    FROM step_schedule
    WHERE scheduled_ns IS NOT NULL
    WINDOW life AS (PARTITION BY engine_id ORDER BY step)
), first_moment AS (
    SELECT w.engine_id, w.request, w.end_ns, m.n AS first_n
    FROM wait w ASOF JOIN moment m ON w.engine_id = m.engine_id AND w.begin_ns <= m.begin_ns
), last_moment AS (
    SELECT f.engine_id, f.request, f.end_ns, f.first_n, m.n AS last_n
    FROM first_moment f ASOF JOIN moment m ON f.engine_id = m.engine_id AND f.end_ns > m.begin_ns
), waited AS (
    SELECT engine_id, request, end_ns, unnest(range(first_n, last_n + 1)) AS n FROM last_moment WHERE last_n >= first_n
), part AS (
    SELECT
        w.request, m.head_request, m.admission_limit, min(m.step) AS first_step, count(*) AS steps,
        sum(least(w.end_ns, coalesce(m.end_ns, w.end_ns)) - m.begin_ns)::BIGINT AS wait_ns
    FROM waited w
    JOIN moment m ON m.engine_id = w.engine_id AND m.n = w.n
    GROUP BY w.request, m.head_request, m.admission_limit
), whole AS (
    SELECT request, head_request, admission_limit, first_step, steps, wait_ns FROM part
    UNION ALL
    SELECT w.request, NULL, NULL, NULL, 0, w.end_ns - w.begin_ns - coalesce(p.wait_ns, 0)
    FROM wait w
    LEFT JOIN (SELECT request, sum(wait_ns)::BIGINT AS wait_ns FROM part GROUP BY request) p ON p.request = w.request
)
SELECT
    w.engine_id,
    w.request,
    w.external_id,
    w.session,
    w.turn,
    CASE
        WHEN p.steps = 0 THEN 'arrived'
        WHEN p.head_request IS NULL THEN 'skipped'
        WHEN p.head_request = w.request THEN 'head'
        ELSE 'behind'
    END AS place,
    p.head_request,
    p.admission_limit,
    p.first_step,
    p.steps,
    p.wait_ns / 1e6 AS wait_ms
FROM whole p
JOIN wait w ON w.request = p.request
WHERE p.wait_ns > 0
ORDER BY w.engine_id, w.request, p.first_step NULLS FIRST, p.head_request, p.admission_limit
