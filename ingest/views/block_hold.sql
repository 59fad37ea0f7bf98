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
), period AS (
    SELECT t.engine_id, t.request, t.time_ns AS start_ns, coalesce(t.until_ns, e.ns) AS end_ns
    FROM (
        SELECT *, lead(time_ns) OVER (PARTITION BY engine_id, request ORDER BY time_ns, begins) AS until_ns
        FROM turn WHERE time_ns IS NOT NULL
    ) t JOIN ended e USING (engine_id) WHERE begins
), change_of_holders AS MATERIALIZED (
    SELECT
        engine_id, block_id, time_ns, rowid AS place, op, ref_count, request,
        lag(ref_count, 1, 0) OVER block AS before,
        lead(time_ns) OVER block AS next_ns,
        lead(rowid) OVER block AS next_place,
        -- Most holds are of one request alone: it takes the block, and next gives it back.
        op <> 'free' AND ref_count = 1 AND request IS NOT NULL AND lag(ref_count, 1, 0) OVER block = 0
        AND coalesce(
            lead(op) OVER block = 'free' AND lead(ref_count) OVER block = 0
            AND lead(request) OVER block IS NOT DISTINCT FROM request, true
        ) AS takes_alone,
        op = 'free' AND ref_count = 0 AND request IS NOT NULL AND coalesce(
            lag(op) OVER block <> 'free'
            AND lag(ref_count) OVER block = 1 AND lag(ref_count, 2, 0) OVER block = 0
            AND lag(request) OVER block IS NOT DISTINCT FROM request, false
        ) AS gives_back
    FROM block_event WHERE pool = 0 AND op IN ('allocate', 'hit', 'free')
    WINDOW block AS (PARTITION BY engine_id, block_id ORDER BY rowid)
), pinned_until AS (
    SELECT
        p.engine_id, block_id, start_ns,
        max(coalesce(end_ns, e.ns)) OVER (PARTITION BY p.engine_id, block_id ORDER BY start_ns) AS ns
    FROM pin p JOIN ended e USING (engine_id)
), held_alone AS MATERIALIZED (
    SELECT c.*, coalesce(p.ns > c.time_ns, false) AS pinned
    FROM (
        SELECT c.*, coalesce(c.next_ns, e.ns) AS end_ns
        FROM change_of_holders c JOIN ended e USING (engine_id) WHERE takes_alone
    ) c ASOF LEFT JOIN pinned_until p
        ON c.engine_id = p.engine_id AND c.block_id = p.block_id AND c.end_ns > p.start_ns
), plain AS (
    SELECT
        a.engine_id, a.block_id, a.op, a.time_ns AS start_ns, a.end_ns,
        least(coalesce(p.start_ns, a.end_ns), a.end_ns) AS runs_ns,
        least(coalesce(p.end_ns, a.end_ns), a.end_ns) AS ran_ns
    FROM held_alone a ASOF LEFT JOIN period p
        ON a.engine_id = p.engine_id AND a.request = p.request AND a.time_ns < p.end_ns
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
        FROM change_of_holders WHERE NOT takes_alone AND NOT gives_back
        UNION ALL
        SELECT engine_id, block_id, time_ns, place, op, ref_count, request, before FROM held_alone WHERE pinned
        UNION ALL
        SELECT engine_id, block_id, next_ns, next_place, 'free', 0, request, 1 FROM held_alone
        WHERE pinned AND next_ns IS NOT NULL
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
    FROM reference r ASOF JOIN period p
        ON r.engine_id = p.engine_id AND r.request = p.request AND r.start_ns < p.end_ns
), span AS (
    SELECT engine_id, block_id, start_ns, end_ns, 1 AS used, own::INTEGER AS own FROM using_it WHERE start_ns < end_ns
    UNION ALL BY NAME
    SELECT engine_id, block_id, start_ns, end_ns, 1 AS refs FROM reference
    UNION ALL BY NAME
    SELECT
        p.engine_id, block_id, start_ns, coalesce(end_ns, e.ns) AS end_ns,
        (cause = 'delayed_free')::INTEGER AS delayed_free,
        (cause = 'in_flight')::INTEGER AS in_flight,
        (cause = 'async_load')::INTEGER AS async_load,
        (cause = 'connector')::INTEGER AS connector,
        (cause = 'ttl')::INTEGER AS ttl,
        (cause = 'streaming')::INTEGER AS streaming
    FROM pin p JOIN ended e USING (engine_id)
), edge AS (
    SELECT engine_id, block_id, start_ns AS ns, COLUMNS(* EXCLUDE (engine_id, block_id, start_ns, end_ns)) FROM span
    UNION ALL BY NAME
    SELECT engine_id, block_id, end_ns AS ns, -COLUMNS(* EXCLUDE (engine_id, block_id, start_ns, end_ns)) FROM span
    UNION ALL BY NAME
    SELECT engine_id, block_id, time_ns AS ns, (ref_count > 0)::INTEGER - (before > 0)::INTEGER AS held
    FROM tangled WHERE (ref_count > 0) <> (before > 0)
), moment AS (
    SELECT engine_id, block_id, ns, sum(COLUMNS(* EXCLUDE (engine_id, block_id, ns)))
    FROM edge GROUP BY engine_id, block_id, ns
), piece AS (
    SELECT
        engine_id, block_id, ns AS start_ns, lead(ns) OVER life AS next_ns,
        sum(COLUMNS(* EXCLUDE (engine_id, block_id, ns))) OVER life
    FROM moment WINDOW life AS (PARTITION BY engine_id, block_id ORDER BY ns)
)
SELECT
    p.engine_id, block_id, start_ns, coalesce(next_ns, e.ns) AS end_ns,
    CASE
        WHEN own > 0 THEN 'running' WHEN used > 0 THEN 'prefix_sharing'
        WHEN delayed_free > 0 THEN 'delayed_free' WHEN in_flight > 0 THEN 'in_flight'
        WHEN async_load > 0 THEN 'async_load' WHEN connector > 0 THEN 'connector'
        WHEN ttl > 0 THEN 'ttl' WHEN streaming > 0 THEN 'streaming'
        WHEN refs > 0 THEN 'waiting' ELSE 'unattributed'
    END AS held_by
FROM piece p JOIN ended e USING (engine_id)
WHERE held > 0 AND start_ns < coalesce(next_ns, e.ns)
UNION ALL
SELECT engine_id, block_id, start_ns, end_ns, held_by FROM plain_piece WHERE start_ns < end_ns
