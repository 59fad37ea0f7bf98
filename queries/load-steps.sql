-- Do loads from a KV tier hold up the steps that they go with?
--
-- One row per engine, connector and size of what a step loads. Copies run beside the GPU's computing, but beginning them is work of
-- the host, in the worker or in a thread of the connector's, for which launches may wait. Only steps that decode and are not
-- followed by a step with other tokens are counted: what these take otherwise is known, from the steps around them (usual_ms).
--
-- group: Offload
-- needs: step, step_schedule, transfer_submit
-- words: connector, offload, load, slow, step, host, launch, swap
-- key: connector, blocks_from, steps, step_ms, usual_ms, us_per_block
-- param: bucket_blocks INTEGER = 250 | Width of a row's sizes, blocks.
-- column: engine_id recorded | The engine.
-- column: connector recorded | The connector's class.
-- column: blocks_from [blocks] derived | The steps load at least so many blocks, and fewer than this and bucket_blocks.
-- column: steps [steps] derived | Such steps.
-- column: mean_blocks [blocks] derived | Mean of what they load.
-- column: schedule_ms [ms] derived | Mean time in the scheduler's `schedule`, with the connector's planning.
-- column: step_ms [ms] derived | Median wall time of the step's own (`step_time.own_ns`).
-- column: usual_ms [ms] derived | Median of what decode steps around them take.
-- column: us_per_block [us/block] derived | What the steps took beyond the usual, over the blocks that they loaded.
-- column: copy_ms [ms] derived | Mean time of their copies on the GPU; NULL where the connector does not tell.

WITH plain AS (
    SELECT engine_id, step, own_ns, usual_ns
    FROM (SELECT *, lead(tokens, 1, 0) OVER (PARTITION BY engine_id ORDER BY step) AS next_tokens FROM step_time)
    WHERE tokens = 0 AND next_tokens = 0 AND own_ns IS NOT NULL AND usual_ns IS NOT NULL
), bucketed AS (
    SELECT
        l.engine_id,
        l.connector,
        (l.blocks // greatest($bucket_blocks, 1) * greatest($bucket_blocks, 1))::BIGINT AS blocks_from,
        l.blocks,
        l.copy_ns,
        s.scheduled_ns - s.start_ns AS schedule_ns,
        p.own_ns,
        p.usual_ns
    FROM step_load l
    JOIN plain p ON p.engine_id = l.engine_id AND p.step = l.step
    JOIN step_schedule s ON s.engine_id = l.engine_id AND s.step = l.step
)
SELECT
    engine_id,
    connector,
    blocks_from,
    count(*) AS steps,
    avg(blocks) AS mean_blocks,
    avg(schedule_ns) / 1e6 AS schedule_ms,
    median(own_ns) / 1e6 AS step_ms,
    median(usual_ns) / 1e6 AS usual_ms,
    sum(own_ns - usual_ns) / 1e3 / sum(blocks) AS us_per_block,
    avg(copy_ns) / 1e6 AS copy_ms
FROM bucketed
GROUP BY engine_id, connector, blocks_from
ORDER BY engine_id, connector, blocks_from
