-- What does each KV cache group hold, what is evicted from it, and how many of its slots hold no token?
--
-- One row per engine and group, for engines that tell of their groups. All groups take blocks from one pool. The group of
-- a block is that of the block table it was allocated for. A group of full attention keeps a block for every token, one
-- of a sliding window or chunk gives blocks back while its request runs, and one of Mamba or linear attention keeps
-- states: `retired_blocks` are those given back by requests that went on. Query kv-group-usage has the blocks and the waste
-- over time.
--
-- group: KV memory
-- needs: kv_group, block_event, block_table, request_event, step_request
-- words: hybrid, sliding window, mamba, waste, fragmentation, eviction, residency, admission
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
-- column: p50_stay_ms [ms] derived | The median of that.
-- column: p90_stay_ms [ms] derived | Nine tenths of the evicted blocks stayed at most this long.
-- column: mean_idle_ms [ms] derived | From a block's last release to its eviction.
-- column: stored_tokens [tokens] derived | Tokens of the requests that hold blocks (mean over steps); NULL without pages, and
--     for the only group of an engine, which query kv-fragmentation has.
-- column: wasted_tokens [tokens] derived | Slots of their tables behind the last token (mean over steps); NULL likewise.
-- column: refused_admissions derived | Times that a request was refused blocks, where there are several groups.
-- column: refused_need_blocks [blocks] recorded | Blocks that it asked for of the group (mean). With a sliding window or
--     chunk, an admission reserves no more than the group holds at a time.

WITH event AS MATERIALIZED (
    SELECT engine_id, kv_group, engine_id::BIGINT << 32 | block_id AS block, op, ref_count, time_ns, place, retired
    FROM group_event
), span AS (
    SELECT engine_id, min(time_ns) AS start_ns, max(time_ns) AS end_ns FROM event GROUP BY engine_id
), counted AS (
    SELECT
        e.engine_id, e.kv_group,
        count(*) FILTER (e.op = 'allocate') AS allocated_blocks,
        count(*) FILTER (e.op = 'hit') AS hit_blocks,
        count(*) FILTER (e.op = 'cache') AS cached_blocks,
        count(*) FILTER (e.op = 'evict') AS evicted_blocks,
        count(*) FILTER (e.retired) AS retired_blocks,
        -- A block is held from each moment at which it gets its first reference to that at which it loses the last one.
        coalesce(sum(
            CASE
                WHEN e.op = 'free' AND e.ref_count = 0 THEN e.time_ns - s.end_ns
                WHEN e.op = 'allocate' OR (e.op = 'hit' AND e.ref_count = 1) THEN s.end_ns - e.time_ns
            END
        ) / nullif(any_value(s.end_ns - s.start_ns), 0), 0) AS used_blocks
    FROM event e JOIN span s ON s.engine_id = e.engine_id
    GROUP BY e.engine_id, e.kv_group
), stay AS (
    SELECT engine_id, kv_group, avg(ns) AS mean_ns, quantile_disc(ns, [0.5, 0.9]) AS ns
    FROM (
        SELECT engine_id, kv_group, op, time_ns - lag(time_ns) OVER (PARTITION BY block ORDER BY place) AS ns
        FROM event WHERE op IN ('allocate', 'evict')
    )
    WHERE op = 'evict'
    GROUP BY engine_id, kv_group
), idle AS (
    SELECT engine_id, kv_group, avg(ns) AS mean_ns
    FROM (
        SELECT engine_id, kv_group, op, time_ns - lag(time_ns) OVER (PARTITION BY block ORDER BY place) AS ns
        FROM event WHERE op = 'evict' OR (op = 'free' AND ref_count = 0)
    )
    WHERE op = 'evict'
    GROUP BY engine_id, kv_group
), waste AS (
    SELECT engine_id, kv_group, avg(table_tokens) AS stored_tokens, avg(table_slots - table_tokens) AS wasted_tokens
    FROM step_group
    GROUP BY engine_id, kv_group
), refused AS (
    SELECT engine_id, kv_group, count(*) AS admissions, avg(need_blocks) AS need_blocks
    FROM refusal_group
    GROUP BY engine_id, kv_group
)
SELECT
    g.engine_id, g.kv_group, g.kind, g.block_size_tokens, g.layers, g.window_tokens,
    c.allocated_blocks, c.hit_blocks, c.cached_blocks, c.evicted_blocks, c.retired_blocks,
    c.used_blocks AS mean_used_blocks,
    c.used_blocks / e.blocks AS used_share,
    y.mean_ns / 1e6 AS mean_stay_ms,
    y.ns[1] / 1e6 AS p50_stay_ms,
    y.ns[2] / 1e6 AS p90_stay_ms,
    i.mean_ns / 1e6 AS mean_idle_ms,
    w.stored_tokens,
    w.wasted_tokens,
    r.admissions AS refused_admissions,
    r.need_blocks AS refused_need_blocks
FROM kv_group g
JOIN engine e ON e.engine_id = g.engine_id
JOIN counted c ON c.engine_id = g.engine_id AND c.kv_group = g.kv_group
LEFT JOIN stay y ON y.engine_id = g.engine_id AND y.kv_group = g.kv_group
LEFT JOIN idle i ON i.engine_id = g.engine_id AND i.kv_group = g.kv_group
LEFT JOIN waste w ON w.engine_id = g.engine_id AND w.kv_group = g.kv_group
LEFT JOIN refused r ON r.engine_id = g.engine_id AND r.kv_group = g.kv_group
ORDER BY g.engine_id, g.kv_group
