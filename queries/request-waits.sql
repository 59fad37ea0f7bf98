-- Why did each request wait at the head of the queue?
--
-- One row per request that was at the head of the queue and not admitted. The first in the queue holds back all behind it.
--
-- group: Scheduling
-- needs: step_schedule
-- words: queue, queued, why, waiting, wait
-- key: request, session, head_steps, admission_limit, need_blocks, free_blocks
-- column: engine_id recorded | The engine.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: head_steps [steps] derived | Steps that it headed the queue in and was not admitted.
-- column: admission_limit inferred | The most frequent reason; of several, the one that came first.
-- column: first_step recorded | The first of these steps.
-- column: need_blocks [blocks] recorded | Blocks that the refused allocation then asked for; NULL for other reasons.
-- column: free_blocks [blocks] recorded | Blocks free then.
-- column: kept_blocks [blocks] recorded | Of these, blocks to be left free: the watermark, reservations of others.

WITH head AS (
    SELECT
        engine_id,
        limit_request AS request,
        count(*) AS head_steps,
        min(step) AS first_step,
        arg_min(limit_need_blocks, step) AS need_blocks,
        arg_min(limit_free_blocks, step) AS free_blocks,
        arg_min(limit_kept_blocks, step) AS kept_blocks
    FROM step_schedule
    WHERE admission_limit <> 'none' AND limit_request IS NOT NULL
    GROUP BY engine_id, limit_request
), reason AS (
    SELECT
        engine_id,
        limit_request AS request,
        admission_limit::VARCHAR AS admission_limit,
        row_number() OVER (PARTITION BY engine_id, limit_request ORDER BY count(*) DESC, min(step)) AS place
    FROM step_schedule
    WHERE admission_limit <> 'none' AND limit_request IS NOT NULL
    GROUP BY engine_id, limit_request, admission_limit::VARCHAR
)
SELECT
    h.engine_id,
    h.request,
    r.external_id,
    r.session,
    r.turn,
    h.head_steps,
    w.admission_limit,
    h.first_step,
    h.need_blocks,
    h.free_blocks,
    h.kept_blocks
FROM head h
JOIN reason w ON w.engine_id = h.engine_id AND w.request = h.request AND w.place = 1
LEFT JOIN request r ON r.request = h.request
ORDER BY h.engine_id, h.head_steps DESC, h.request
