-- What a step loads from a KV tier.
--
-- Of several workers that copy the same blocks, the one that takes longest counts.
--
-- needs: transfer
-- column: engine_id recorded | The engine.
-- column: step recorded | The step in which the loads were submitted.
-- column: connector recorded | The connector's class; one of several.
-- column: blocks [blocks] derived | GPU blocks that it loads.
-- column: copy_ns [ns] derived | Time of its copies on the GPU, one after the other; NULL where the connector does not tell.

SELECT
    engine_id,
    step,
    any_value(connector) AS connector,
    sum(blocks)::BIGINT AS blocks,
    try_cast(sum(copy_ns) AS BIGINT) AS copy_ns -- A damaged recording may hold any number.
FROM (
    SELECT
        engine_id, transfer, any_value(connector) AS connector, any_value(step) AS step, max(blocks) AS blocks,
        max(device_ns) AS copy_ns
    FROM transfer
    WHERE direction = 'load' AND blocks > 0
    GROUP BY engine_id, transfer
)
GROUP BY engine_id, step
