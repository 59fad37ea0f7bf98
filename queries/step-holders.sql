-- Who held KV blocks when a step had been scheduled?
--
-- One row per request that held any, those with most first: running ones, and those that wait for a load or keep blocks
-- in another way. A shared block counts for each request that holds it. What a request that waited in that step lacked is
-- in request-waits.
--
-- group: KV memory
-- needs: block_event, step
-- words: who, held, holds, memory, beside, blocked, waiting
-- key: step, request, session, blocks, share, scheduled_tokens
-- param: step INTEGER = NULL | The step; if NULL, of each engine the first one in which most blocks were used.
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- column: engine_id recorded | The engine.
-- column: step recorded | The step.
-- column: time_ns [ns] recorded | When `schedule` returned, UNIX time.
-- column: request recorded | Key of table `request`.
-- column: external_id recorded | The id the client knows.
-- column: session recorded | Session tag, if the client passed one.
-- column: turn recorded | Turn tag, if the client passed one.
-- column: blocks [blocks] derived | Blocks it held.
-- column: share [ratio] derived | Of the engine's blocks.
-- column: scheduled_tokens [tokens] recorded | Tokens of it in that step; NULL if it was not in the batch.

WITH moment AS (
    SELECT engine_id, step, scheduled_ns AS time_ns
    FROM (
        SELECT
            engine_id, step, scheduled_ns,
            row_number() OVER (PARTITION BY engine_id ORDER BY used_blocks DESC NULLS LAST, step) AS place
        FROM step
        WHERE ($step IS NULL OR step = $step) AND ($engine IS NULL OR engine_id = $engine)
    ) s
    WHERE place = 1
), latest AS (
    SELECT
        m.engine_id, m.step, m.time_ns, b.request, b.op,
        row_number() OVER (
            PARTITION BY b.engine_id, b.pool, b.block_id, b.request ORDER BY b.time_ns DESC, b.rowid DESC
        ) AS place
    FROM block_event b
    JOIN moment m ON m.engine_id = b.engine_id
    WHERE b.op IN ('allocate', 'hit', 'free') AND b.request IS NOT NULL AND b.time_ns <= m.time_ns
), held AS (
    SELECT engine_id, step, time_ns, request, count(*) AS blocks
    FROM latest
    WHERE place = 1 AND op <> 'free'
    GROUP BY engine_id, step, time_ns, request
)
SELECT
    h.engine_id, h.step, h.time_ns, h.request, r.external_id, r.session, r.turn, h.blocks,
    h.blocks / e.blocks AS share,
    s.scheduled_tokens
FROM held h
LEFT JOIN request r ON r.request = h.request
LEFT JOIN engine e ON e.engine_id = h.engine_id
LEFT JOIN step_request s ON s.engine_id = h.engine_id AND s.step = h.step AND s.request = h.request
ORDER BY h.engine_id, h.blocks DESC, h.request
