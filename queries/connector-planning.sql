-- What does a KV connector cost the scheduler?
--
-- One row per engine and kind of step: whether the connector was asked about a waiting request in it, and whether it loaded.
-- The engine launches nothing while it schedules. What such a step's `schedule` took beyond the median of steps without
-- either is what the connector costs there, with the admission itself; us_per_asked_block and us_per_loaded_block share it by
-- blocks. A question's own time is in question_ms. The rest is planning, as of what to store, and evicting from its tier.
-- Compare a run without a connector by schedule_ms of step-timeline.
--
-- group: Offload
-- needs: connector_lookup, step_schedule
-- words: connector, offload, lmcache, overhead, scheduler, host, slow, lookup
-- key: connector, kind, steps, total_ms, mean_ms, us_per_asked_block, us_per_loaded_block
-- column: engine_id recorded | The engine.
-- column: connector recorded | The connector's class.
-- column: kind derived | neither, asked, loaded, asked_loaded.
-- column: steps [steps] derived | Such steps.
-- column: total_ms [ms] derived | Time in `schedule` in these steps.
-- column: mean_ms [ms] derived | Mean of a step.
-- column: questions derived | Questions to the connector.
-- column: question_ms [ms] derived | Time within them; NULL in older recordings.
-- column: asked_blocks [blocks] derived | Blocks of the prompts that it was asked about.
-- column: loaded_blocks [blocks] derived | Blocks that it loaded.
-- column: us_per_asked_block [us/block] derived | Time in `schedule` beyond the median of steps with neither, over asked_blocks,
--     in steps without a load.
-- column: us_per_loaded_block [us/block] derived | The same over loaded_blocks in steps with a load, without us_per_asked_block
--     of the blocks asked about in them.

WITH asked AS (
    SELECT
        l.engine_id, l.step, count(*) AS questions, sum(l.time_ns - l.asked_ns) AS question_ns,
        sum(r.prompt_tokens // e.block_size_tokens) AS blocks
    FROM connector_lookup l
    JOIN engine e ON e.engine_id = l.engine_id
    LEFT JOIN request r ON r.engine_id = l.engine_id AND r.request = l.request
    WHERE l.part = 0
    GROUP BY l.engine_id, l.step
), plan AS (
    SELECT
        s.engine_id,
        CASE
            WHEN a.questions > 0 AND l.blocks > 0 THEN 'asked_loaded' WHEN a.questions > 0 THEN 'asked'
            WHEN l.blocks > 0 THEN 'loaded' ELSE 'neither'
        END AS kind,
        s.scheduled_ns - s.start_ns AS ns,
        a.questions,
        a.question_ns,
        a.blocks AS asked_blocks,
        l.blocks AS loaded_blocks
    FROM step_schedule s
    LEFT JOIN asked a ON a.engine_id = s.engine_id AND a.step = s.step
    LEFT JOIN step_load l ON l.engine_id = s.engine_id AND l.step = s.step
), usual AS (
    SELECT engine_id, median(ns) AS ns FROM plan WHERE kind = 'neither' GROUP BY engine_id
), counted AS (
    SELECT
        p.engine_id, p.kind, count(*) AS steps, sum(p.ns)::BIGINT AS ns, sum(p.questions)::BIGINT AS questions,
        sum(p.question_ns)::BIGINT AS question_ns, sum(p.asked_blocks)::BIGINT AS asked_blocks,
        sum(p.loaded_blocks)::BIGINT AS loaded_blocks, sum(p.ns - u.ns) AS beyond_ns
    FROM plan p
    LEFT JOIN usual u ON u.engine_id = p.engine_id
    GROUP BY p.engine_id, p.kind
), price AS (
    SELECT engine_id, beyond_ns / nullif(asked_blocks, 0) AS asked_block_ns FROM counted WHERE kind = 'asked'
), named AS (
    SELECT engine_id, any_value(connector) AS connector FROM connector_lookup WHERE part = 0 GROUP BY engine_id
)
SELECT
    c.engine_id,
    n.connector,
    c.kind,
    c.steps,
    c.ns / 1e6 AS total_ms,
    c.ns / 1e6 / c.steps AS mean_ms,
    coalesce(c.questions, 0) AS questions,
    c.question_ns / 1e6 AS question_ms,
    coalesce(c.asked_blocks, 0) AS asked_blocks,
    coalesce(c.loaded_blocks, 0) AS loaded_blocks,
    CASE WHEN c.kind = 'asked' THEN p.asked_block_ns / 1e3 END AS us_per_asked_block,
    CASE
        WHEN c.loaded_blocks > 0
            THEN (c.beyond_ns - coalesce(c.asked_blocks * p.asked_block_ns, 0)) / c.loaded_blocks / 1e3
    END AS us_per_loaded_block
FROM counted c
JOIN named n ON n.engine_id = c.engine_id
LEFT JOIN price p ON p.engine_id = c.engine_id
ORDER BY c.engine_id, c.kind
