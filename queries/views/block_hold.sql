-- A piece of the time in which a GPU block had references, and its one holder.
--
-- A running request comes first, then pins in the order of PinCause. Derived from block_event, request_event and pin.
--
-- needs: block_event, pin, request_event, step_update
-- made: at ingest
-- column: engine_id recorded | The engine.
-- column: block_id recorded | The block.
-- column: start_ns [ns] derived | From when.
-- column: end_ns [ns] derived | To when; the last event of the engine if it was still held.
-- column: held_by derived | running: a request that runs and had it allocated; prefix_sharing: only requests that run
--     and found it in the prefix cache; a cause of table `pin`; waiting: a request that does not run and has no pin,
--     such as one whose load finished and that is not admitted yet; unattributed: kvtrace saw no holder.

WITH ended AS (
    SELECT engine_id, max(ns) AS ns
    FROM (
        SELECT engine_id, max(time_ns) AS ns FROM block_event GROUP BY engine_id
        UNION ALL
        SELECT engine_id, max(end_ns) FROM step_update GROUP BY engine_id
    ) GROUP BY engine_id
), turn AS (
    SELECT engine_id, request, time_ns, op IN ('schedule', 'resume') AS begins
    FROM request_event WHERE op IN ('schedule', 'resume', 'preempt', 'finish')
    UNION ALL
    SELECT DISTINCT engine_id, request, unnest([start_ns, end_ns]), unnest([false, true])
    FROM pin WHERE cause = 'streaming'
), ran AS (
    SELECT t.engine_id, t.request, t.time_ns AS start_ns, coalesce(t.until_ns, e.ns) AS end_ns
    FROM (
        SELECT *, lead(time_ns) OVER (PARTITION BY engine_id, request ORDER BY time_ns, begins) AS until_ns
        FROM turn WHERE time_ns IS NOT NULL
    ) t JOIN ended e USING (engine_id) WHERE begins
), period AS MATERIALIZED (
    -- From the end of a request's period before to the end of this one, a moment finds this one: joins by hash suffice.
    SELECT *, lag(end_ns, 1, -9223372036854775808) OVER (PARTITION BY engine_id, request ORDER BY end_ns) AS after_ns
    FROM ran
), change_of_holders AS MATERIALIZED (
    -- Most holds are of one request alone: it takes the block, and next gives it back.
    SELECT
        engine_id, block_id, time_ns, place, op, ref_count, request, before, next_ns,
        coalesce(taker > 0 AND before = 0 AND next_taker = -taker, false) AS takes_alone
    FROM (
        SELECT
            *,
            lag(ref_count, 1, 0) OVER block AS before,
            lag(ref_count, 2, 0) OVER block AS two_before,
            lead(time_ns) OVER block AS next_ns,
            lag(taker) OVER block AS last_taker,
            lead(taker) OVER block AS next_taker
        FROM (
            SELECT
                engine_id, block_id, time_ns, rowid AS place, op, ref_count, request,
                CASE
                    WHEN op <> 'free' AND ref_count = 1 THEN request + 1
                    WHEN op = 'free' AND ref_count = 0 THEN -request - 1
                END AS taker
            FROM block_event WHERE pool = 0 AND op IN ('allocate', 'hit', 'free')
        )
        WINDOW block AS (PARTITION BY engine_id, block_id ORDER BY place)
    )
    WHERE NOT coalesce(taker < 0 AND last_taker = -taker AND two_before = 0, false)
), pinned_until AS (
    SELECT
        p.engine_id, block_id, start_ns,
        max(coalesce(end_ns, e.ns)) OVER (PARTITION BY p.engine_id, block_id ORDER BY start_ns) AS ns
    FROM pin p JOIN ended e USING (engine_id)
), taken_alone AS (
    SELECT * FROM change_of_holders WHERE takes_alone
), held_alone AS (
    SELECT *, false AS pinned FROM taken_alone ANTI JOIN pin USING (engine_id, block_id)
    UNION ALL
    SELECT t.*, coalesce(p.ns > t.time_ns, false) AS pinned
    FROM (FROM taken_alone SEMI JOIN pin USING (engine_id, block_id)) t ASOF LEFT JOIN pinned_until p
        ON t.engine_id = p.engine_id AND t.block_id = p.block_id AND t.next_ns > p.start_ns
), plain AS (
    SELECT
        a.engine_id, a.block_id, a.op, a.time_ns AS start_ns, a.next_ns AS end_ns,
        least(coalesce(p.start_ns, a.next_ns), a.next_ns) AS runs_ns,
        least(coalesce(p.end_ns, a.next_ns), a.next_ns) AS ran_ns
    FROM held_alone a LEFT JOIN period p
        ON a.engine_id = p.engine_id AND a.request = p.request AND a.time_ns >= p.after_ns AND a.time_ns < p.end_ns
    WHERE NOT a.pinned
), plain_piece AS (
    SELECT
        engine_id, block_id, unnest([start_ns, greatest(start_ns, runs_ns), ran_ns]) AS start_ns,
        unnest([runs_ns, ran_ns, end_ns]) AS end_ns,
        unnest(['waiting', CASE WHEN op = 'allocate' THEN 'running' ELSE 'prefix_sharing' END, 'waiting'])
            AS held_by
    FROM plain
), tangled AS (
    SELECT
        *,
        min(CASE WHEN ref_count = 0 THEN time_ns END) OVER (
            PARTITION BY engine_id, block_id ORDER BY place ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS empty_ns
    FROM (
        SELECT engine_id, block_id, time_ns, place, op, ref_count, request, before
        FROM change_of_holders WHERE NOT takes_alone
        UNION ALL
        SELECT engine_id, block_id, time_ns, place, op, ref_count, request, before FROM held_alone WHERE pinned
        UNION ALL
        SELECT engine_id, block_id, next_ns, place + 1, 'free', 0, request, 1 FROM held_alone WHERE pinned
    )
), reference AS (
    SELECT
        r.engine_id, r.block_id, r.request, r.time_ns AS start_ns, r.op = 'allocate' AS own,
        coalesce(least(CASE WHEN next_op = 'free' THEN next_ns END, empty_ns), e.ns) AS end_ns
    FROM (
        SELECT *, lead(op) OVER mine AS next_op, lead(time_ns) OVER mine AS next_ns
        FROM tangled WHERE request IS NOT NULL
        WINDOW mine AS (PARTITION BY engine_id, block_id, request ORDER BY place)
    ) r JOIN ended e USING (engine_id)
    WHERE r.op <> 'free'
), using_it AS (
    SELECT
        r.engine_id, r.block_id, r.own, greatest(r.start_ns, p.start_ns) AS start_ns,
        least(r.end_ns, p.end_ns) AS end_ns
    FROM reference r JOIN period p
        ON r.engine_id = p.engine_id AND r.request = p.request AND r.start_ns >= p.after_ns AND r.start_ns < p.end_ns
), span AS (
    -- Numbers of holders, packed into two integers to be summed at once: `users` has references from bit 20, requests
    -- that use the block from bit 40, those of them that allocated it from bit 60; `pins` a cause every 20 bits.
    SELECT
        engine_id, block_id, start_ns, end_ns, (1::HUGEINT << 40) + (own::HUGEINT << 60) AS users, 0::HUGEINT AS pins
    FROM using_it WHERE start_ns < end_ns
    UNION ALL
    SELECT engine_id, block_id, start_ns, end_ns, 1::HUGEINT << 20, 0 FROM reference
    UNION ALL
    SELECT
        p.engine_id, block_id, start_ns, coalesce(end_ns, e.ns), 0,
        CASE cause
            WHEN 'delayed_free' THEN 1::HUGEINT << 100 WHEN 'in_flight' THEN 1::HUGEINT << 80
            WHEN 'async_load' THEN 1::HUGEINT << 60 WHEN 'connector' THEN 1::HUGEINT << 40
            WHEN 'ttl' THEN 1::HUGEINT << 20 WHEN 'streaming' THEN 1
        END
    FROM pin p JOIN ended e USING (engine_id)
), edge AS (
    SELECT engine_id, block_id, start_ns AS ns, users, pins FROM span
    UNION ALL
    SELECT engine_id, block_id, end_ns, -users, -pins FROM span
    UNION ALL
    SELECT engine_id, block_id, time_ns, (ref_count > 0)::INTEGER - (before > 0)::INTEGER, 0
    FROM tangled WHERE (ref_count > 0) <> (before > 0)
), moment AS (
    SELECT engine_id, block_id, ns, sum(users) AS users, sum(pins) AS pins FROM edge GROUP BY engine_id, block_id, ns
), piece AS (
    SELECT
        engine_id, block_id, ns AS start_ns, lead(ns) OVER life AS next_ns,
        sum(users) OVER life AS users, sum(pins) OVER life AS pins
    FROM moment WINDOW life AS (PARTITION BY engine_id, block_id ORDER BY ns)
)
SELECT
    p.engine_id, block_id, start_ns, coalesce(next_ns, e.ns) AS end_ns,
    CASE
        WHEN users >> 60 > 0 THEN 'running' WHEN users >> 40 > 0 THEN 'prefix_sharing'
        WHEN pins >> 100 > 0 THEN 'delayed_free' WHEN pins >> 80 > 0 THEN 'in_flight'
        WHEN pins >> 60 > 0 THEN 'async_load' WHEN pins >> 40 > 0 THEN 'connector'
        WHEN pins >> 20 > 0 THEN 'ttl' WHEN pins > 0 THEN 'streaming'
        WHEN users >> 20 > 0 THEN 'waiting' ELSE 'unattributed'
    END AS held_by
FROM piece p JOIN ended e USING (engine_id)
WHERE users % 2 = 1 AND start_ns < coalesce(next_ns, e.ns)
UNION ALL
SELECT engine_id, block_id, start_ns, end_ns, held_by FROM plain_piece WHERE start_ns < end_ns
