-- A stretch of a request's life, and what it was doing: queued, in prefill, decoding, preempted, computing again.
--
-- The stretches are put together from the turns that the scheduler recorded. A resumed request computes tokens again
-- until the last step of that phase has ended; where all its KV was still in the prefix cache it has no such step and
-- goes on at once. A first token that comes back after its request was preempted does not end the preemption: under
-- async scheduling results arrive late. A request that was admitted before the trace begins is admitted in the first step
-- that computed any of its tokens. Stretches without duration are left out. Requests of which only the
-- arrival is known (request traces, logs) have none.
--
-- needs: request, request_event, step_request, step_schedule, step_update
-- column: engine_id recorded | The engine that served it.
-- column: request recorded | Key of table `request`.
-- column: state derived | queued, prefill, decode, preempted or resumed.
-- column: start_ns [ns] recorded | From when, UNIX time.
-- column: end_ns [ns] recorded | To when; NULL if the recording ended before.
-- column: step recorded | The scheduler's step in which it began; NULL where a step did not begin it.

WITH turn AS (
    SELECT engine_id, request, step, time_ns, op::VARCHAR AS op FROM request_event
), resume AS (
    SELECT engine_id, request, step, time_ns FROM turn WHERE op = 'resume'
), share AS (
    SELECT q.request, q.step, q.phase = 'resumed' AS again, u.end_ns
    FROM step_request q
    LEFT JOIN step_update u ON u.engine_id = q.engine_id AND u.step = q.step
    WHERE q.request IN (SELECT request FROM resume)
), first_share AS (
    SELECT q.request, min(q.step) AS step
    FROM step_request q
    WHERE q.request NOT IN (SELECT request FROM turn WHERE op = 'schedule' AND request IS NOT NULL)
    GROUP BY q.request
), first_turn AS (
    SELECT request, min(time_ns) AS time_ns FROM turn GROUP BY request
), found_running AS (
    SELECT s.engine_id, q.request, s.start_ns AS time_ns, q.phase::VARCHAR AS phase
    FROM first_share f
    INNER JOIN step_request q ON f.request = q.request AND f.step = q.step
    INNER JOIN step_schedule s ON q.engine_id = s.engine_id AND q.step = s.step
    LEFT JOIN first_turn t ON f.request = t.request
    WHERE s.start_ns IS NOT NULL AND (t.time_ns IS NULL OR t.time_ns >= s.start_ns)
), recomputed AS (
    SELECT t.engine_id, t.request, coalesce(max(s.end_ns) FILTER (s.again), t.time_ns) AS time_ns
    FROM share s
    ASOF JOIN resume t ON s.request = t.request AND s.step >= t.step
    GROUP BY t.engine_id, t.request, t.step, t.time_ns
    HAVING NOT bool_or(s.again AND s.end_ns IS NULL)
), life AS (
    SELECT
        engine_id,
        request,
        coalesce(queued_ns, arrival_ns, scheduled_ns, first_token_ns, finished_ns) AS time_ns,
        'queued' AS op,
        NULL AS step
    FROM request
    WHERE
        coalesce(queued_ns, arrival_ns, scheduled_ns, first_token_ns, finished_ns) IS NOT NULL
        AND (queued_ns IS NOT NULL OR engine_id IN (SELECT engine_id FROM turn))
    UNION ALL
    SELECT engine_id, request, time_ns, op, step FROM turn
    UNION ALL
    SELECT engine_id, request, time_ns, 'schedule', NULL FROM found_running
    UNION ALL
    SELECT engine_id, request, time_ns, 'first_token', NULL FROM found_running WHERE phase = 'decode'
    UNION ALL
    SELECT engine_id, request, time_ns, 'recomputed', NULL FROM recomputed
), placed AS (
    SELECT
        engine_id,
        request,
        time_ns,
        op,
        step,
        row_number() OVER (
            PARTITION BY engine_id, request
            ORDER BY
                time_ns,
                list_position(
                    ['queued', 'schedule', 'resume', 'recomputed', 'first_token', 'preempt', 'finish'], op
                )
        ) AS place
    FROM life
), known AS (
    SELECT
        *,
        last_value(CASE WHEN op NOT IN ('recomputed', 'first_token') THEN op END IGNORE NULLS) OVER past AS turned,
        max(CASE WHEN op = 'resume' THEN place END) OVER past AS resumed,
        max(CASE WHEN op = 'recomputed' THEN place END) OVER past AS recomputed,
        bool_or(op = 'first_token') OVER past AS generating
    FROM placed
    WINDOW past AS (PARTITION BY engine_id, request ORDER BY place)
), judged AS (
    SELECT
        engine_id,
        request,
        place,
        time_ns,
        step,
        CASE
            WHEN turned = 'finish' THEN NULL
            WHEN turned = 'preempt' THEN 'preempted'
            WHEN turned = 'resume' AND coalesce(recomputed, 0) < resumed THEN 'resumed'
            WHEN generating THEN 'decode'
            WHEN turned = 'queued' THEN 'queued'
            ELSE 'prefill'
        END AS state
    FROM known
    -- Of turns that share a time, only what they led to.
    QUALIFY lead(time_ns) OVER (PARTITION BY engine_id, request ORDER BY place) IS DISTINCT FROM time_ns
), changed AS (
    SELECT * FROM judged
    QUALIFY state IS DISTINCT FROM lag(state) OVER (PARTITION BY engine_id, request ORDER BY place)
), stretch AS (
    SELECT
        engine_id,
        request,
        state,
        time_ns AS start_ns,
        lead(time_ns) OVER (PARTITION BY engine_id, request ORDER BY place) AS end_ns,
        step
    FROM changed
)
SELECT engine_id, request, state, start_ns, end_ns, step
FROM stretch
WHERE state IS NOT NULL
