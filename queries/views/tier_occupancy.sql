-- An event of an offload tier's block, and how many blocks the tier held after it.
--
-- Occupied blocks are those taken and not given up since, so a copy under way counts.
--
-- needs: tier_block
-- columns: tier_block
-- column: place derived | Its place among the tier's events (`rowid` of `tier_block`).
-- column: occupied_blocks [blocks] derived | Blocks that the connector's tier then held.

WITH event AS (
    SELECT
        *,
        rowid AS place,
        count_if(op = 'reset') OVER (PARTITION BY engine_id, connector, tier ORDER BY rowid) AS era
    FROM tier_block
), life AS (
    -- A block whose number the tier does not tell goes by its content.
    SELECT
        *,
        coalesce(lag(op) OVER (
            PARTITION BY
                engine_id, connector, tier, era, tier_block_id,
                CASE WHEN tier_block_id IS NULL THEN block_hash END, CASE WHEN tier_block_id IS NULL THEN kv_group END
            ORDER BY place
        ) NOT IN ('evict', 'drop', 'reset'), false) AS held
    FROM event
), change AS (
    SELECT
        *,
        CASE
            WHEN op IN ('write', 'store') THEN (NOT held)::INTEGER WHEN op IN ('evict', 'drop') THEN -held::INTEGER
            ELSE 0
        END AS blocks
    FROM life
)
SELECT
    * EXCLUDE (era, held, blocks),
    (sum(blocks) OVER (PARTITION BY engine_id, connector, tier, era ORDER BY place))::BIGINT AS occupied_blocks
FROM change
