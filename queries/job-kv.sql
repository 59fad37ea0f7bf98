-- Where was one job's KV, turn by turn and between: in use, cached but free, gone, in an offload tier?
--
-- One row per moment at which any of the columns changed, from the job's first arrival on; changes between turns come
-- from other requests. A job is the requests of one session tag. Its content is the full blocks, by content hash, that
-- its requests cached or hit so far. Each block of the content is on the GPU (in use by any request, or free) or gone
-- from it, and it may also be in an offload tier. A prefix shared with other jobs counts as its content, too.
-- held_blocks are those that its own requests reference, including the last, partly filled ones.
--
-- A tier that keeps chunks of several blocks names only the last one's hash, so tier_blocks are too few there.
--
-- group: KV memory
-- figure: LMCache study: lifecycle of one job's KV in GPU and host memory across tool gaps
-- needs: request, block_event
-- param: session VARCHAR = NULL | The job; NULL: the one that took longest.
-- key: session, time_ns, turn_number, phase, held_blocks, used_blocks, gone_blocks
-- column: session recorded | The job.
-- column: time_ns [ns] recorded | When, UNIX time.
-- column: at_s [s] derived | The same since the job's first arrival.
-- column: turn_number derived | The last turn that had arrived, counted from 1.
-- column: phase derived | running: a turn is in the batch; waiting: one has arrived or was preempted; gap: none is in
--     the engine; ended: the last one has left it.
-- column: held_blocks [blocks] derived | GPU blocks that its own requests reference.
-- column: content_blocks [blocks] derived | Blocks of its content so far.
-- column: used_blocks [blocks] derived | Of them, on the GPU and referenced by any request, connector or pin.
-- column: cached_free_blocks [blocks] derived | Of them, on the GPU and free: findable, and next to be evicted.
-- column: gone_blocks [blocks] derived | Of them, not on the GPU any more.
-- column: tier_blocks [blocks] derived | Of content_blocks, in an offload tier, on the GPU or not.
-- column: tier_only_blocks [blocks] derived | Of gone_blocks, in an offload tier: they can be loaded.

WITH chosen AS (
    SELECT session
    FROM job_turn
    WHERE $session IS NULL OR session = $session
    GROUP BY session
    ORDER BY max(finished_ns) - min(arrival_ns) DESC NULLS LAST, session
    LIMIT 1
), mine AS (
    FROM job_turn SEMI JOIN chosen USING (session)
), event AS NOT MATERIALIZED (
    SELECT rowid AS place, * FROM block_event WHERE pool = 0
), hold AS (
    SELECT engine_id, block_id, place, time_ns, request, op FROM event SEMI JOIN mine USING (request)
    WHERE op IN ('allocate', 'hit')
), stored AS (
    SELECT engine_id, block_id, place, time_ns, request, (kv_group, block_hash) AS content
    FROM event SEMI JOIN (FROM hold) USING (engine_id, block_id)
    WHERE op = 'cache'
), owner AS (
    SELECT engine_id, block_id, place, request FROM event SEMI JOIN (FROM hold) USING (engine_id, block_id)
    WHERE op = 'allocate'
), known AS (
    -- What its requests cached, what a connector loaded into blocks allocated for them, and what they hit.
    SELECT engine_id, content, min(time_ns) AS since_ns
    FROM (
        SELECT s.engine_id, s.content, s.time_ns
        FROM stored s ASOF JOIN owner o
            ON s.engine_id = o.engine_id AND s.block_id = o.block_id AND s.place >= o.place
        WHERE coalesce(s.request, o.request) IN (SELECT request FROM mine)
        UNION ALL
        SELECT h.engine_id, s.content, h.time_ns
        FROM (FROM hold WHERE op = 'hit') h ASOF JOIN stored s
            ON h.engine_id = s.engine_id AND h.block_id = s.block_id AND h.place >= s.place
    )
    GROUP BY engine_id, content
), keeper AS (
    SELECT DISTINCT e.engine_id, e.block_id
    FROM event e SEMI JOIN known k ON e.engine_id = k.engine_id AND (e.kv_group, e.block_hash) = k.content
    WHERE e.op = 'cache'
), life AS (
    SELECT
        engine_id,
        block_id,
        place,
        time_ns,
        ref_count > 0 AS used,
        last_value(CASE
            WHEN op IN ('cache', 'evict', 'reset') THEN
                { 'content': (kv_group, block_hash), 'there': op = 'cache' }
        END IGNORE NULLS) OVER block AS held
    FROM (
        SELECT engine_id, block_id, place, time_ns, op, ref_count, kv_group, block_hash
        FROM event SEMI JOIN keeper USING (engine_id, block_id)
        UNION ALL
        SELECT k.engine_id, k.block_id, r.place, r.time_ns, r.op, 0, NULL, NULL
        FROM keeper k JOIN event r ON r.engine_id = k.engine_id AND r.op = 'reset'
    )
    WINDOW block AS (PARTITION BY engine_id, block_id ORDER BY place)
), state AS (
    SELECT
        engine_id,
        time_ns,
        CASE WHEN held.there THEN held.content END AS content,
        used,
        lag(CASE WHEN held.there THEN held.content END) OVER block AS old_content,
        lag(used) OVER block AS old_used
    FROM life
    WINDOW block AS (PARTITION BY engine_id, block_id ORDER BY place)
), change AS (
    SELECT engine_id, time_ns, content, used::INTEGER AS used, (NOT used)::INTEGER AS free, 0 AS tier
    FROM state WHERE content IS NOT NULL
    UNION ALL
    SELECT engine_id, time_ns, old_content, -old_used::INTEGER, -(NOT old_used)::INTEGER, 0
    FROM state WHERE old_content IS NOT NULL
    UNION ALL
    SELECT engine_id, time_ns, content, 0, 0, there - coalesce(lag(there) OVER kept, 0)
    FROM (
        SELECT
            t.engine_id,
            t.connector,
            t.tier,
            t.rowid AS place,
            t.time_ns,
            k.content,
            (t.op = 'store')::INTEGER AS there
        FROM tier_block t JOIN known k
            ON
                k.engine_id = t.engine_id
                AND (t.op = 'reset' OR (coalesce(t.kv_group, 0), t.block_hash) = k.content)
        WHERE t.op IN ('store', 'evict', 'drop', 'reset')
    )
    WINDOW kept AS (PARTITION BY engine_id, connector, tier, content ORDER BY place)
), level AS (
    SELECT
        c.engine_id,
        c.content,
        greatest(c.time_ns, k.since_ns) AS time_ns,
        c.time_ns AS changed_ns,
        sum(c.used) OVER content > 0 AS used,
        sum(c.free) OVER content > 0 AS free,
        sum(c.tier) OVER content > 0 AS tier
    FROM (
        SELECT engine_id, content, time_ns, sum(used) AS used, sum(free) AS free, sum(tier) AS tier
        FROM change GROUP BY engine_id, content, time_ns
    ) c JOIN known k USING (engine_id, content)
    WINDOW content AS (PARTITION BY c.engine_id, c.content ORDER BY c.time_ns)
), placed AS (
    -- What happened before the job knew of a block shows as its state at that moment.
    SELECT
        engine_id,
        content,
        time_ns,
        1 AS content_blocks,
        used::INTEGER AS used,
        (free AND NOT used)::INTEGER AS free,
        tier::INTEGER AS tier,
        (tier AND NOT used AND NOT free)::INTEGER AS tier_only
    FROM level
    QUALIFY row_number() OVER (PARTITION BY engine_id, content, time_ns ORDER BY changed_ns DESC) = 1
), moved AS (
    SELECT
        time_ns,
        content_blocks - lag(content_blocks, 1, 0) OVER content AS content_blocks,
        used - lag(used, 1, 0) OVER content AS used,
        free - lag(free, 1, 0) OVER content AS free,
        tier - lag(tier, 1, 0) OVER content AS tier,
        tier_only - lag(tier_only, 1, 0) OVER content AS tier_only
    FROM placed
    WINDOW content AS (PARTITION BY engine_id, content ORDER BY time_ns)
), touched AS (
    SELECT
        engine_id,
        block_id,
        place,
        time_ns,
        request,
        op,
        min(CASE WHEN ref_count = 0 THEN time_ns END) OVER (
            PARTITION BY engine_id, block_id ORDER BY place ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS empty_ns
    FROM event SEMI JOIN (FROM hold) USING (engine_id, block_id)
    WHERE op IN ('allocate', 'hit', 'free')
), reference AS (
    -- A request's own release ends its reference; where another released the block for it, the last release does.
    SELECT op, time_ns, least(CASE WHEN lead(op) OVER own = 'free' THEN lead(time_ns) OVER own END, empty_ns) AS end_ns
    FROM touched SEMI JOIN mine USING (request)
    WINDOW own AS (PARTITION BY engine_id, block_id, request ORDER BY place)
), turn AS (
    SELECT
        e.time_ns,
        CASE
            WHEN op IN ('schedule', 'resume') THEN 1
            WHEN op = 'preempt' OR lag(op) OVER (PARTITION BY engine_id, request ORDER BY time_ns, rowid) <> 'preempt'
                THEN -1
        END AS running
    FROM request_event e SEMI JOIN mine USING (request)
    WHERE op IN ('schedule', 'resume', 'preempt', 'finish')
), mixed AS (
    SELECT
        time_ns, NULL AS turn_number, content_blocks, used, free, tier, tier_only, 0 AS held, 0 AS running, 0 AS present
    FROM moved
    UNION ALL
    SELECT time_ns, NULL, 0, 0, 0, 0, 0, 1, 0, 0 FROM reference WHERE op <> 'free'
    UNION ALL
    SELECT end_ns, NULL, 0, 0, 0, 0, 0, -1, 0, 0 FROM reference WHERE op <> 'free' AND end_ns IS NOT NULL
    UNION ALL
    SELECT time_ns, NULL, 0, 0, 0, 0, 0, 0, running, 0 FROM turn
    UNION ALL
    SELECT arrival_ns, turn_number, 0, 0, 0, 0, 0, 0, 0, 1 FROM mine
    UNION ALL
    SELECT finished_ns, NULL, 0, 0, 0, 0, 0, 0, 0, -1 FROM mine WHERE finished_ns IS NOT NULL
), moment AS (
    SELECT
        time_ns, max(turn_number) AS turn_number, sum(content_blocks) AS content_blocks, sum(used) AS used,
        sum(free) AS free, sum(tier) AS tier, sum(tier_only) AS tier_only, sum(held) AS held, sum(running) AS running,
        sum(present) AS present
    FROM mixed
    GROUP BY time_ns
), total AS (
    SELECT
        time_ns,
        max(turn_number) OVER so_far AS turn_number,
        (sum(content_blocks) OVER so_far)::BIGINT AS content_blocks,
        (sum(used) OVER so_far)::BIGINT AS used,
        (sum(free) OVER so_far)::BIGINT AS free,
        (sum(tier) OVER so_far)::BIGINT AS tier,
        (sum(tier_only) OVER so_far)::BIGINT AS tier_only,
        (sum(held) OVER so_far)::BIGINT AS held,
        (coalesce(sum(running) OVER so_far, 0))::BIGINT AS running,
        (sum(present) OVER so_far)::BIGINT AS present
    FROM moment
    WINDOW so_far AS (ORDER BY time_ns)
)
SELECT
    session,
    time_ns,
    (time_ns - min(time_ns) OVER ()) / 1e9 AS at_s,
    turn_number,
    CASE
        WHEN running > 0 THEN 'running'
        WHEN present > 0 THEN 'waiting'
        WHEN turn_number < turns THEN 'gap'
        ELSE 'ended'
    END AS phase,
    held AS held_blocks,
    content_blocks,
    used AS used_blocks,
    free AS cached_free_blocks,
    content_blocks - used - free AS gone_blocks,
    tier AS tier_blocks,
    tier_only AS tier_only_blocks
FROM (
    SELECT
        *,
        (SELECT max(turn_number) FROM mine) AS turns,
        (turn_number, running, present, held, content_blocks, used, free, tier, tier_only) AS figures
    FROM total
), chosen
QUALIFY figures IS DISTINCT FROM lag(figures) OVER (ORDER BY time_ns)
ORDER BY time_ns
