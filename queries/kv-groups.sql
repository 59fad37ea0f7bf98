-- What does each KV cache group hold, what is evicted from it, and how many of its slots hold no token?
--
-- One row per engine and group, for engines that tell of their groups. All groups take blocks from one pool. The group of
-- a block is that of the block table it was allocated for. A group of full attention keeps a block for every token, one
-- of a sliding window or chunk gives blocks back while its request runs, and one of Mamba or linear attention keeps
-- states: `retired_blocks` are those given back by requests that went on.
--
-- group: KV memory
-- needs: kv_group, block_event, block_table, request_event, step_request
-- words: hybrid, sliding window, mamba, waste, fragmentation, eviction
-- key: kv_group, kind, mean_used_blocks, used_share, allocated_blocks, retired_blocks, evicted_blocks, wasted_tokens
-- column: engine_id recorded | The engine.
-- column: kv_group recorded | The KV cache group.
-- column: kind derived | full, window, chunk, state or other.
-- column: block_size_tokens [tokens] recorded | Tokens a block: slots, or the tokens that one state stands for.
-- column: layers recorded | Layers of the group.
-- column: window_tokens [tokens] recorded | Tokens of the window or chunk; NULL without one.
-- column: allocated_blocks [blocks] derived | Allocations for the group.
-- column: hit_blocks [blocks] derived | References taken by prefix hits.
-- column: cached_blocks [blocks] recorded | Blocks that became findable by a hash.
-- column: evicted_blocks [blocks] recorded | Blocks that were evicted.
-- column: retired_blocks [blocks] derived | References given back by a request that went on.
-- column: mean_used_blocks [blocks] derived | Blocks with references, averaged over the time of the engine's events.
-- column: used_share [ratio] derived | mean_used_blocks over the blocks of the pool.
-- column: mean_stay_ms [ms] derived | From a block's allocation to its eviction; NULL without evictions.
-- column: stored_tokens [tokens] derived | Tokens of the requests of a step, in their tables of the group (mean over
--     steps); NULL of states.
-- column: wasted_tokens [tokens] derived | Slots of those tables behind the last token (mean over steps); NULL of states.

WITH event AS (
    SELECT
        b.engine_id, b.block_id, b.op, b.ref_count, b.time_ns, b.rowid AS place, b.step, b.request, b.kv_group, g.alone
    FROM block_event b
    JOIN (SELECT engine_id, count(*) = 1 AS alone FROM kv_group GROUP BY engine_id) g ON g.engine_id = b.engine_id
    WHERE b.pool = 0 AND b.op <> 'reset'
), allocated AS (
    SELECT a.engine_id, a.place, coalesce(t.kv_group, -1) AS kv_group
    FROM (SELECT * FROM event WHERE op = 'allocate' AND NOT alone) a
    ASOF LEFT JOIN block_table t
        ON a.engine_id = t.engine_id AND a.block_id = t.block_id AND a.request = t.request AND a.step <= t.step
), placed AS (
    SELECT engine_id, op, ref_count, time_ns, request, 0 AS kv_group FROM event WHERE alone
    UNION ALL
    -- A block stays in the group it was allocated for until it is allocated again.
    SELECT
        e.engine_id, e.op, e.ref_count, e.time_ns, e.request,
        CASE
            WHEN e.op IN ('cache', 'evict') THEN e.kv_group
            ELSE last_value(a.kv_group IGNORE NULLS) OVER (PARTITION BY e.engine_id, e.block_id ORDER BY e.place)
        END AS kv_group
    FROM event e LEFT JOIN allocated a ON a.engine_id = e.engine_id AND a.place = e.place
    WHERE NOT e.alone
), turn AS (
    SELECT engine_id, request, time_ns, op IN ('schedule', 'resume') AS runs
    FROM request_event WHERE op IN ('schedule', 'resume', 'preempt', 'finish')
), retired AS (
    SELECT p.engine_id, p.kv_group, count(*) AS blocks
    FROM (SELECT * FROM placed WHERE op = 'free') p
    ASOF JOIN turn t ON p.engine_id = t.engine_id AND p.request = t.request AND p.time_ns >= t.time_ns
    WHERE t.runs
    GROUP BY p.engine_id, p.kv_group
), span AS (
    SELECT engine_id, min(time_ns) AS start_ns, max(time_ns) AS end_ns FROM event GROUP BY engine_id
), held AS (
    -- A block is held from each moment at which it gets its first reference to that at which it loses the last one.
    SELECT
        p.engine_id, p.kv_group,
        sum(CASE WHEN p.op = 'free' THEN p.time_ns - s.end_ns ELSE s.end_ns - p.time_ns END)
        / nullif(any_value(s.end_ns - s.start_ns), 0) AS blocks
    FROM placed p JOIN span s ON s.engine_id = p.engine_id
    WHERE p.op = 'allocate' OR (p.op = 'hit' AND p.ref_count = 1) OR (p.op = 'free' AND p.ref_count = 0)
    GROUP BY p.engine_id, p.kv_group
), stay AS (
    SELECT engine_id, kv_group, avg(time_ns - before_ns) AS mean_ns
    FROM (
        SELECT
            engine_id, op, time_ns, CASE WHEN alone THEN 0 ELSE kv_group END AS kv_group,
            lag(time_ns) OVER (PARTITION BY engine_id, block_id ORDER BY place) AS before_ns
        FROM event WHERE op IN ('allocate', 'evict')
    )
    WHERE op = 'evict'
    GROUP BY engine_id, kv_group
), counted AS (
    SELECT
        engine_id, kv_group,
        count(*) FILTER (op = 'allocate') AS allocated_blocks,
        count(*) FILTER (op = 'hit') AS hit_blocks,
        count(*) FILTER (op = 'cache') AS cached_blocks,
        count(*) FILTER (op = 'evict') AS evicted_blocks
    FROM placed GROUP BY engine_id, kv_group
), size AS (
    SELECT engine_id, request, step, kv_group, max(position) + 1 AS blocks
    FROM block_table GROUP BY engine_id, request, step, kv_group
), filled AS (
    SELECT r.engine_id, r.kv_group, r.step, r.tokens, s.blocks * r.block_size_tokens AS slots
    FROM (
        SELECT
            q.engine_id, q.request, q.step, q.computed_tokens + q.scheduled_tokens AS tokens,
            g.kv_group::UTINYINT AS kv_group, g.block_size_tokens
        FROM step_request q JOIN kv_group g ON g.engine_id = q.engine_id
        WHERE g.kind <> 'state'
    ) r ASOF JOIN size s
        ON r.engine_id = s.engine_id AND r.request = s.request AND r.kv_group = s.kv_group AND r.step >= s.step
), waste AS (
    SELECT engine_id, kv_group, avg(tokens) AS stored_tokens, avg(slots - tokens) AS wasted_tokens
    FROM (
        SELECT engine_id, kv_group, step, sum(tokens) AS tokens, sum(slots) AS slots
        FROM filled GROUP BY engine_id, kv_group, step
    ) GROUP BY engine_id, kv_group
)
SELECT
    g.engine_id, g.kv_group, g.kind, g.block_size_tokens, g.layers, g.window_tokens,
    c.allocated_blocks, c.hit_blocks, c.cached_blocks, c.evicted_blocks,
    coalesce(r.blocks, 0) AS retired_blocks,
    coalesce(h.blocks, 0) AS mean_used_blocks,
    coalesce(h.blocks, 0) / e.blocks AS used_share,
    y.mean_ns / 1e6 AS mean_stay_ms,
    w.stored_tokens,
    w.wasted_tokens
FROM kv_group g
JOIN engine e ON e.engine_id = g.engine_id
JOIN counted c ON c.engine_id = g.engine_id AND c.kv_group = g.kv_group
LEFT JOIN retired r ON r.engine_id = g.engine_id AND r.kv_group = g.kv_group
LEFT JOIN held h ON h.engine_id = g.engine_id AND h.kv_group = g.kv_group
LEFT JOIN stay y ON y.engine_id = g.engine_id AND y.kv_group = g.kv_group
LEFT JOIN waste w ON w.engine_id = g.engine_id AND w.kv_group = g.kv_group
ORDER BY g.engine_id, g.kv_group
