-- What held the blocks, and for how long: running requests, and what else?
--
-- One row per engine and holder. Each block's referenced time is assigned to one holder at a time: running requests
-- first, then pins in the order of PinCause. The rows add up to the time that blocks were held. The rows that are not
-- in use add up to the time that blocks were held though no running request used them.
--
-- running: a request that runs and had the block allocated. prefix_sharing: only requests that run and found it in the
-- prefix cache. delayed_free: its request ended, the connector still saves or loads. in_flight: freed while a step that
-- may write it was running. async_load: its request waits for a connector's load. connector: a reference that the
-- connector took. ttl: kept by the scheduler for a time. streaming: a streaming session waits for input. waiting: a
-- request that does not run and has no pin. unattributed: kvtrace saw no holder.
--
-- group: KV memory
-- needs: block_event, request_event
-- words: holds, who
-- key: held_by, in_use, block_seconds, share, mean_blocks, pins
-- column: engine_id recorded | The engine.
-- column: held_by derived | The holder.
-- column: in_use derived | A running request used the blocks.
-- column: block_seconds [block-s] derived | Blocks times seconds.
-- column: share [ratio] derived | Share of all time in which blocks were held.
-- column: blocks [blocks] derived | Different blocks.
-- column: mean_blocks [blocks] derived | Blocks held so on average over the recording's block events.
-- column: pins recorded | Pins of that cause, one a block.
-- column: pinned_block_seconds [block-s] derived | Blocks times seconds of those pins, other holders beside them or not.
-- column: longest_pin_ms [ms] derived | The longest of them.
-- column: used derived | Pins that ended because they were used.
-- column: expired derived | Pins whose time ran out.
-- column: forced derived | Pins forced out to admit others.

WITH held AS (
    SELECT engine_id, held_by, sum(end_ns - start_ns)::BIGINT AS ns, count(DISTINCT block_id) AS blocks
    FROM block_hold
    GROUP BY engine_id, held_by
), ended AS (
    SELECT engine_id, min(time_ns) AS start_ns, max(time_ns) AS end_ns
    FROM block_event
    WHERE pool = 0
    GROUP BY engine_id
), pinned AS (
    SELECT
        engine_id,
        cause::VARCHAR AS held_by,
        count(*) AS pins,
        sum(coalesce(p.end_ns, e.end_ns) - p.start_ns)::BIGINT AS ns,
        max(coalesce(p.end_ns, e.end_ns) - p.start_ns) AS longest_ns,
        count(*) FILTER (end_reason = 'used') AS used,
        count(*) FILTER (end_reason = 'expired') AS expired,
        count(*) FILTER (end_reason = 'forced') AS forced
    FROM pin p JOIN ended e USING (engine_id)
    GROUP BY engine_id, cause
)
SELECT
    engine_id,
    held_by,
    held_by IN ('running', 'prefix_sharing') AS in_use,
    coalesce(h.ns, 0) / 1e9 AS block_seconds,
    coalesce(h.ns, 0) / sum(h.ns) OVER (PARTITION BY engine_id) AS share,
    coalesce(h.blocks, 0) AS blocks,
    coalesce(h.ns, 0) / nullif(e.end_ns - e.start_ns, 0) AS mean_blocks,
    p.pins,
    p.ns / 1e9 AS pinned_block_seconds,
    p.longest_ns / 1e6 AS longest_pin_ms,
    p.used,
    p.expired,
    p.forced
FROM held h
FULL JOIN pinned p USING (engine_id, held_by)
JOIN ended e USING (engine_id)
ORDER BY engine_id, in_use DESC, block_seconds DESC, held_by
