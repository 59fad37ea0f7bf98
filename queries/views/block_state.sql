-- A change of a GPU block's state or owner, and what it then was: empty, cached, used or shared.
--
-- It is the block's state after its last change of a moment. A reset of the prefix cache changes all blocks.
--
-- needs: block_event
-- column: engine_id recorded | The engine.
-- column: place derived | Its place among the block events (`rowid` of `block_event`); blocks that a reset changes share it.
-- column: time_ns [ns] recorded | When.
-- column: block_id recorded | The block.
-- column: state derived | empty: nothing findable in it; cached: free, but findable by hash; used: referenced once; shared:
--     referenced more than once.
-- column: request derived | The last request that allocated or hit it; NULL if none is known.
-- column: evicted derived | It was evicted since the row before.

WITH own AS (
    SELECT engine_id, rowid AS place, time_ns, block_id, op, ref_count, request FROM block_event WHERE pool = 0
), event AS (
    SELECT * FROM own WHERE op <> 'reset'
    UNION ALL
    SELECT r.engine_id, r.place, r.time_ns, b.block_id, r.op, NULL, NULL
    FROM (SELECT * FROM own WHERE op = 'reset') r
    JOIN (SELECT DISTINCT engine_id, block_id FROM own WHERE op <> 'reset') b ON b.engine_id = r.engine_id
), told AS (
    SELECT
        engine_id,
        place,
        time_ns,
        block_id,
        coalesce(last_value(ref_count IGNORE NULLS) OVER life, 0) AS refs,
        coalesce(
            last_value(CASE WHEN op = 'cache' THEN 1 WHEN op IN ('evict', 'reset') THEN 0 END IGNORE NULLS) OVER life, 0
        )
            AS findable,
        last_value(CASE WHEN op IN ('allocate', 'hit') THEN request END IGNORE NULLS) OVER life AS request,
        count_if(op = 'evict') OVER life AS evictions
    FROM event
    WINDOW life AS (PARTITION BY engine_id, block_id ORDER BY place ROWS UNBOUNDED PRECEDING)
), settled AS (
    SELECT
        *,
        CASE WHEN refs > 1 THEN 'shared' WHEN refs = 1 THEN 'used' WHEN findable = 1 THEN 'cached' ELSE 'empty' END
            AS state
    FROM told
    QUALIFY lead(time_ns) OVER (PARTITION BY engine_id, block_id ORDER BY place) IS DISTINCT FROM time_ns
)
SELECT
    engine_id,
    place,
    time_ns,
    block_id,
    state,
    request,
    evictions > lag(evictions, 1, 0) OVER (PARTITION BY engine_id, block_id ORDER BY place) AS evicted
FROM settled
QUALIFY (state, coalesce(request, -1)) IS DISTINCT FROM lag((state, coalesce(request, -1))) OVER (
    PARTITION BY engine_id, block_id ORDER BY place
)
