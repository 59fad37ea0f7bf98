-- An event of a block of the GPU pool, with the KV cache group that holds or held the block.
--
-- All groups take blocks from one pool. The group of a block is that of the block table it was allocated for, or else of its
-- hash, until it is allocated again; of a block that is cached or evicted it is recorded. Engines that do not tell of their
-- groups are left out. A group of full attention keeps the blocks of a request until it ends. One of a window or chunk gives
-- back those that fell out of it, and one of Mamba or linear attention the states that no later token needs: these references
-- are `retired`.
--
-- needs: block_event, block_table, kv_group, request_event
-- column: engine_id recorded | The engine.
-- column: kv_group derived | KV cache group; NULL of a block that was in no block table and never cached.
-- column: block_id recorded | The block.
-- column: op recorded | What happened.
-- column: ref_count [requests] recorded | References after it.
-- column: time_ns [ns] recorded | When.
-- column: place derived | Its place among the block events (`rowid` of `block_event`).
-- column: step recorded | Scheduler step.
-- column: request recorded | For which request; NULL for none.
-- column: retired derived | With free: given back by a request that goes on.

WITH event AS (
    SELECT
        b.engine_id, b.block_id, b.op, b.ref_count, b.time_ns, b.rowid AS place, b.step, b.request, b.kv_group, g.alone
    FROM block_event b
    JOIN (SELECT engine_id, count(*) = 1 AS alone FROM kv_group GROUP BY engine_id) g ON g.engine_id = b.engine_id
    WHERE b.pool = 0 AND b.op <> 'reset'
), tabled AS (
    SELECT a.engine_id, a.block_id, a.place, a.next_place, t.kv_group
    FROM (
        SELECT *, lead(place) OVER (PARTITION BY engine_id, block_id ORDER BY place) AS next_place
        FROM event WHERE op = 'allocate' AND NOT alone
    ) a
    -- Without the condition the tables of engines that are alone would be sorted, too.
    ASOF LEFT JOIN (SELECT * FROM block_table WHERE engine_id IN (SELECT engine_id FROM kv_group WHERE kv_group > 0)) t
        ON a.engine_id = t.engine_id AND a.block_id = t.block_id AND a.request = t.request AND a.step <= t.step
), allocated AS (
    -- Some blocks are in no table, as the copy of a state that is kept for others: they are cached at once.
    SELECT
        a.engine_id, a.place,
        coalesce(a.kv_group, CASE WHEN c.place < coalesce(a.next_place, c.place + 1) THEN c.kv_group END, 255)
            AS kv_group
    FROM tabled a
    ASOF LEFT JOIN (SELECT * FROM event WHERE op = 'cache' AND NOT alone) c
        ON a.engine_id = c.engine_id AND a.block_id = c.block_id AND a.place <= c.place
), placed AS (
    SELECT engine_id, 0::UTINYINT AS kv_group, block_id, op, ref_count, time_ns, place, step, request
    FROM event WHERE alone
    UNION ALL
    SELECT
        e.engine_id,
        CASE
            WHEN e.op IN ('cache', 'evict') THEN e.kv_group
            ELSE nullif(
                last_value(a.kv_group IGNORE NULLS) OVER (PARTITION BY e.engine_id, e.block_id ORDER BY e.place), 255
            )
        END AS kv_group,
        e.block_id, e.op, e.ref_count, e.time_ns, e.place, e.step, e.request
    FROM event e LEFT JOIN allocated a ON a.engine_id = e.engine_id AND a.place = e.place
    WHERE NOT e.alone
), turn AS (
    SELECT
        engine_id, request, op, time_ns AS start_ns,
        lead(time_ns) OVER (PARTITION BY engine_id, request ORDER BY time_ns) AS end_ns
    FROM request_event WHERE op IN ('schedule', 'resume', 'preempt', 'finish')
)
SELECT *, false AS retired FROM placed WHERE op <> 'free'
UNION ALL
SELECT p.*, t.request IS NOT NULL
FROM (SELECT * FROM placed WHERE op = 'free') p
LEFT JOIN (SELECT * FROM turn WHERE op IN ('schedule', 'resume')) t
    ON
        p.engine_id = t.engine_id AND p.request = t.request
        AND p.time_ns >= t.start_ns AND p.time_ns < coalesce(t.end_ns, p.time_ns + 1)
