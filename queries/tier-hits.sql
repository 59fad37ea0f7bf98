-- What did each offload tier serve, how full was it, and what did it evict too early?
--
-- One row per engine, connector, tier and stretch of time; `bucket_ms` sets the stretch, NULL makes one of the whole
-- recording. Occupied blocks are those allocated and not yet evicted or dropped, so a copy under way counts.
--
-- A block is thrashed when its content is evicted and the same content is written to the tier again later: a larger
-- tier, or another policy, would have spared the copy. It is unused when it was evicted without a hit since it was
-- written.
--
-- group: Offload
-- needs: tier_block
-- param: bucket_ms DOUBLE = NULL | Length of a stretch, from the tier's first event; NULL: the whole recording.
-- key: tier, stored_blocks, hit_blocks, evicted_blocks, unused_blocks, max_occupied_blocks
-- column: engine_id recorded | The engine.
-- column: connector recorded | The connector's class.
-- column: tier recorded | The tier.
-- column: start_ns [ns] derived | Start of the stretch, UNIX time.
-- column: stored_blocks [blocks] recorded | Blocks that became readable.
-- column: hit_blocks [blocks] recorded | Blocks loaded from it for requests.
-- column: hit_requests [requests] recorded | Different requests they were for, where the connector keeps that.
-- column: evicted_blocks [blocks] recorded | Blocks whose content was evicted.
-- column: unused_blocks [blocks] derived | Of those: never hit.
-- column: thrashed_blocks [blocks] derived | Of those: the same content was stored again later.
-- column: dropped_blocks [blocks] recorded | Blocks given back without content.
-- column: end_occupied_blocks [blocks] derived | Blocks occupied at the end of the stretch.
-- column: max_occupied_blocks [blocks] derived | Most during it, or at its first event.
-- column: capacity_blocks [blocks] recorded | Blocks the tier has room for, if known.

WITH told AS (
    SELECT
        *,
        max(CASE WHEN op = 'hit' THEN place END) OVER before AS last_hit,
        max(CASE WHEN op = 'store' THEN place END) OVER before AS last_store,
        max(CASE WHEN op = 'store' THEN place END) OVER later AS stored_later
    FROM (SELECT *, rowid AS place FROM tier_block)
    WHERE block_hash IS NOT NULL
    WINDOW
        before AS (
            PARTITION BY engine_id, connector, tier, block_hash, kv_group ORDER BY place
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ),
        later AS (
            PARTITION BY engine_id, connector, tier, block_hash, kv_group ORDER BY place
            ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        )
), given_up AS (
    SELECT
        place,
        coalesce(last_hit < last_store, last_hit IS NULL) AS unused,
        stored_later IS NOT NULL AS thrashed
    FROM told
    WHERE op = 'evict'
), levelled AS (
    SELECT *, min(time_ns) OVER (PARTITION BY engine_id, connector, tier) AS began_ns FROM tier_occupancy
), bucketed AS (
    SELECT
        *,
        began_ns + coalesce(
            ((time_ns - began_ns) // ($bucket_ms * 1e6)::BIGINT) * ($bucket_ms * 1e6)::BIGINT, 0
        ) AS start_ns
    FROM levelled LEFT JOIN given_up USING (place)
)
SELECT
    b.engine_id,
    b.connector,
    b.tier,
    start_ns,
    count(*) FILTER (op = 'store') AS stored_blocks,
    count(*) FILTER (op = 'hit') AS hit_blocks,
    count(DISTINCT request) FILTER (op = 'hit') AS hit_requests,
    count(*) FILTER (op = 'evict') AS evicted_blocks,
    count(*) FILTER (unused) AS unused_blocks,
    count(*) FILTER (thrashed) AS thrashed_blocks,
    count(*) FILTER (op = 'drop') AS dropped_blocks,
    arg_max(occupied_blocks, place) AS end_occupied_blocks,
    max(occupied_blocks) AS max_occupied_blocks,
    any_value(c.capacity_blocks) AS capacity_blocks
FROM bucketed b
LEFT JOIN (
    SELECT process_id AS engine_id, connector, tier, any_value(capacity_blocks) AS capacity_blocks
    FROM connector WHERE role = 'scheduler' GROUP BY ALL
) c ON c.engine_id = b.engine_id AND c.connector = b.connector AND c.tier = b.tier::VARCHAR
GROUP BY b.engine_id, b.connector, b.tier, start_ns
ORDER BY b.engine_id, b.connector, b.tier, start_ns
