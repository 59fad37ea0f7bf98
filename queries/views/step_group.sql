-- A KV cache group of a hybrid model after a step's `schedule`: its blocks in use, and the slots of its block tables.
--
-- Only engines with several groups have rows. Blocks are counted from the events of the pool, slots from the block tables of
-- requests that are admitted and neither preempted nor finished. The tables go on over blocks that were given back, as those
-- behind a window, and so do the tokens: their difference is what the last blocks waste. States and what else is not paged
-- (`other`) have no slots.
--
-- needs: block_table, group_event, kv_group, request_event, step_request, step_schedule
-- made: at ingest if EXISTS (FROM kv_group WHERE kv_group > 0)
-- column: engine_id recorded | The engine.
-- column: step recorded | Scheduler step.
-- column: time_ns [ns] recorded | When `schedule` returned.
-- column: kv_group recorded | KV cache group.
-- column: kind derived | full, window, chunk, state or other.
-- column: block_size_tokens [tokens] recorded | Tokens a block.
-- column: used_blocks [blocks] derived | Its blocks that have a reference.
-- column: table_tokens [tokens] derived | Tokens of the requests that hold blocks; NULL without slots.
-- column: table_slots [tokens] derived | Slots of their block tables; NULL without slots.

WITH several AS (
    SELECT * FROM kv_group WHERE engine_id IN (SELECT engine_id FROM kv_group WHERE kv_group > 0)
), grouped AS (
    SELECT
        s.engine_id, s.step, s.scheduled_ns AS time_ns, g.kv_group::UTINYINT AS kv_group, g.kind, g.block_size_tokens
    FROM step_schedule s JOIN several g ON g.engine_id = s.engine_id
), held AS (
    -- A block is held from each moment at which it gets its first reference to that at which it loses the last one.
    SELECT e.engine_id, s.step, e.kv_group, sum(CASE WHEN e.op = 'free' THEN -1 ELSE 1 END) AS blocks
    FROM (
        SELECT * FROM group_event
        WHERE op = 'allocate' OR (op = 'hit' AND ref_count = 1) OR (op = 'free' AND ref_count = 0)
    ) e
    ASOF JOIN step_schedule s ON e.engine_id = s.engine_id AND s.scheduled_ns >= e.time_ns
    GROUP BY e.engine_id, s.step, e.kv_group
), size AS (
    SELECT engine_id, request, step, kv_group, max(position) + 1 AS blocks
    FROM block_table GROUP BY engine_id, request, step, kv_group
), share AS (
    SELECT
        q.engine_id, q.request, q.step, q.computed_tokens + q.scheduled_tokens AS tokens,
        g.kv_group::UTINYINT AS kv_group, g.block_size_tokens
    FROM step_request q JOIN several g ON g.engine_id = q.engine_id
    WHERE g.kind IN ('full', 'window', 'chunk')
), ended AS (
    SELECT DISTINCT e.engine_id, e.request, s.step
    FROM request_event e ASOF JOIN step_schedule s ON e.engine_id = s.engine_id AND s.scheduled_ns >= e.time_ns
    WHERE e.op IN ('preempt', 'finish')
), state AS (
    SELECT
        r.engine_id, r.request, r.step, r.kv_group, false AS ended, r.tokens, s.blocks * r.block_size_tokens AS slots
    FROM share r ASOF JOIN size s
        ON r.engine_id = s.engine_id AND r.request = s.request AND r.kv_group = s.kv_group AND r.step >= s.step
    UNION ALL
    SELECT e.engine_id, e.request, e.step, g.kv_group::UTINYINT, true, 0, 0
    FROM ended e JOIN several g ON g.engine_id = e.engine_id
    WHERE g.kind IN ('full', 'window', 'chunk')
), change AS (
    SELECT
        engine_id, step, kv_group,
        tokens - lag(tokens, 1, 0) OVER life AS tokens,
        slots - lag(slots, 1, 0) OVER life AS slots
    FROM state
    -- Who is preempted and admitted again before one call of `schedule` returns holds blocks after it.
    WINDOW life AS (PARTITION BY engine_id, request, kv_group ORDER BY step, NOT ended)
), stored AS (
    SELECT engine_id, step, kv_group, sum(tokens) AS tokens, sum(slots) AS slots
    FROM change GROUP BY engine_id, step, kv_group
)
SELECT
    g.engine_id, g.step, g.time_ns, g.kv_group, g.kind, g.block_size_tokens,
    (sum(coalesce(h.blocks, 0)) OVER steps)::BIGINT AS used_blocks,
    CASE WHEN g.kind IN ('full', 'window', 'chunk') THEN (sum(coalesce(t.tokens, 0)) OVER steps)::BIGINT END
        AS table_tokens,
    CASE WHEN g.kind IN ('full', 'window', 'chunk') THEN (sum(coalesce(t.slots, 0)) OVER steps)::BIGINT END
        AS table_slots
FROM grouped g
LEFT JOIN held h ON h.engine_id = g.engine_id AND h.step = g.step AND h.kv_group = g.kv_group
LEFT JOIN stored t ON t.engine_id = g.engine_id AND t.step = g.step AND t.kv_group = g.kv_group
WINDOW steps AS (PARTITION BY g.engine_id, g.kv_group ORDER BY g.step)
