-- How many blocks were allocated over time, and how many of their slots hold no token?
--
-- One row per step, as it was when `schedule` returned, with the step's own tokens counted as stored; with bucket_ms
-- one row per bucket, averaged over its steps. used_blocks is the pool's own count, so a block that several requests
-- share counts once. A request wastes the slots of its block table beyond its last token. Shared blocks are full, so no
-- waste counts twice. A running request that got no tokens in a step keeps its blocks and its waste.
--
-- Blocks that no running request holds (a connector's or a pin's, those of a request whose KV is still being loaded) are
-- in used_blocks and count as full: query pinned-blocks has them. Drafted tokens count as stored in the step that
-- schedules them. With several KV cache groups a token has a slot in each, and a request wastes slots in each. Where their
-- blocks differ in size, slots are counted group by group, and states of Mamba or linear attention have none: the columns in
-- tokens are then of the blocks that hold pages, without those that no request holds. Query kv-group-usage has each group.
--
-- group: KV memory
-- figure: Kwon et al. (SOSP'23, PagedAttention), section 3.1 and Figure 2: internal fragmentation; here over time.
-- needs: step_schedule, step_request, engine
-- param: bucket_ms DOUBLE = 0 | Width of a bucket; 0 gives a row per step.
-- param: engine INTEGER = NULL | Only this engine (`engine_id`); all engines if NULL.
-- key: time_ns, step, requests, used_blocks, stored_tokens, wasted_share
-- column: engine_id recorded | The engine.
-- column: time_ns [ns] recorded | When `schedule` returned, UNIX time; of a bucket, its first step's.
-- column: step recorded | The step; of a bucket, its first one.
-- column: steps [steps] derived | Steps in the row.
-- column: block_size_tokens [tokens] recorded | Slots a block.
-- column: requests [requests] derived | Requests that hold blocks: admitted and neither preempted nor finished (mean).
-- column: used_blocks [blocks] recorded | Blocks referenced by anything (mean).
-- column: table_blocks [blocks] derived | Entries of those requests' block tables (mean): a shared block counts once a
--     request, so what exceeds used_blocks was saved by sharing.
-- column: allocated_tokens [tokens] derived | Slots of used_blocks (mean).
-- column: stored_tokens [tokens] derived | Of them, slots that hold a token's KV (mean).
-- column: wasted_tokens [tokens] derived | The others: internal fragmentation (mean).
-- column: wasted_share [ratio] derived | wasted_tokens over allocated_tokens.

WITH alike AS (
    SELECT
        engine_id, count(*) AS kv_groups,
        bool_and(kind IN ('full', 'window', 'chunk')) AND min(block_size_tokens) = max(block_size_tokens) AS even
    FROM kv_group GROUP BY engine_id
), state AS (
    SELECT
        r.engine_id, r.request, s.scheduled_ns AS time_ns, r.step, false AS ended, r.new_blocks AS blocks,
        r.computed_tokens + r.scheduled_tokens AS stored_tokens
    FROM step_request r JOIN step_schedule s USING (engine_id, step)
    WHERE $engine IS NULL OR r.engine_id = $engine
    UNION ALL
    SELECT e.engine_id, e.request, e.time_ns, s.step, true, -coalesce(e.blocks, 0), 0
    FROM request_event e ASOF JOIN step_schedule s ON e.engine_id = s.engine_id AND s.scheduled_ns >= e.time_ns
    WHERE e.op IN ('preempt', 'finish') AND ($engine IS NULL OR e.engine_id = $engine)
), change AS (
    SELECT
        engine_id, step,
        -- A request that ends while it waits has no blocks to give back.
        CASE WHEN ended AND lag(ended, 1, true) OVER life THEN 0 ELSE blocks END AS blocks,
        stored_tokens - lag(stored_tokens, 1, 0) OVER life AS tokens,
        (NOT ended)::INTEGER - (NOT lag(ended, 1, true) OVER life)::INTEGER AS requests
    FROM state
    WINDOW life AS (PARTITION BY engine_id, request ORDER BY time_ns, ended)
), step_change AS (
    SELECT engine_id, step, sum(blocks) AS blocks, sum(tokens) AS tokens, sum(requests) AS requests
    FROM change GROUP BY engine_id, step
), uneven AS (
    SELECT
        engine_id, step, sum(CASE WHEN table_slots IS NOT NULL THEN used_blocks * block_size_tokens END) AS slots,
        sum(table_slots - table_tokens) AS wasted
    FROM step_group
    WHERE engine_id IN (SELECT engine_id FROM alike WHERE NOT even)
    GROUP BY engine_id, step
), filled AS (
    SELECT
        s.engine_id, s.step, s.scheduled_ns, s.used_blocks, e.block_size_tokens,
        coalesce(e.kv_groups, 1) = 1 OR coalesce(a.even, false) AS even,
        u.slots AS group_slots, u.wasted AS group_wasted,
        (sum(coalesce(c.blocks, 0)) OVER steps)::BIGINT AS table_blocks,
        (sum(coalesce(c.tokens * coalesce(a.kv_groups, 1), 0)) OVER steps)::BIGINT AS table_tokens,
        (sum(coalesce(c.requests, 0)) OVER steps)::BIGINT AS requests,
        CASE
            WHEN $bucket_ms > 0
                THEN
                    (s.scheduled_ns - min(s.scheduled_ns) OVER (PARTITION BY s.engine_id)) // ($bucket_ms * 1e6)::BIGINT
            ELSE s.step
        END AS bucket
    FROM step_schedule s
    JOIN engine e USING (engine_id)
    LEFT JOIN alike a USING (engine_id)
    LEFT JOIN step_change c USING (engine_id, step)
    LEFT JOIN uneven u USING (engine_id, step)
    WHERE $engine IS NULL OR s.engine_id = $engine
    WINDOW steps AS (PARTITION BY s.engine_id ORDER BY s.step)
), averaged AS (
    SELECT
        engine_id, min(scheduled_ns) AS time_ns, min(step) AS step, count(*) AS steps, block_size_tokens,
        avg(requests) AS requests, avg(used_blocks) AS used_blocks, avg(table_blocks) AS table_blocks,
        CASE WHEN even THEN avg(used_blocks) * block_size_tokens ELSE avg(group_slots) END AS allocated_tokens,
        CASE
            WHEN even THEN avg(table_blocks * block_size_tokens - table_tokens) ELSE avg(group_wasted)
        END AS wasted_tokens
    FROM filled
    WHERE EXISTS (FROM step_change)
    GROUP BY engine_id, bucket, block_size_tokens, even
)
SELECT
    engine_id, time_ns, step, steps, block_size_tokens, requests, used_blocks, table_blocks, allocated_tokens,
    allocated_tokens - wasted_tokens AS stored_tokens,
    wasted_tokens,
    CASE WHEN allocated_tokens > 0 THEN wasted_tokens / allocated_tokens END AS wasted_share
FROM averaged
ORDER BY engine_id, time_ns, step
