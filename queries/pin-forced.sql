-- Which refused admissions and preemptions did pins force?
--
-- One row per engine, kind, request and cause: what happened to a request while blocks were held that no running
-- request used (as `pinned-blocks` counts them), and the cause that held them.
--
-- A refused admission is a step in which the head of the queue was refused for lack of blocks. It counts as forced when
-- the blocks it asked for are no more than the blocks free at that moment plus the pinned ones: without any pins it
-- would have fitted. `forced_alone` is the same for one cause's blocks. The moment is that of its prefix lookup in that
-- step, else the end of the step's scheduling. vLLM's watermark and reserved blocks are not considered.
--
-- A preemption happens because a running request got no block. vLLM does not say how many it asked for; a decoding
-- request asks for one. So a preemption counts as forced when any block was pinned: at least that one could have been
-- used.
--
-- group: KV memory
-- needs: step_schedule, block_event, request_event
-- key: kind, request, cause, events, forced_alone, owners
-- worst: events
-- column: engine_id recorded | The engine.
-- column: kind derived | refused or preempted.
-- column: request recorded | The request that had to wait, or was thrown out.
-- column: external_id recorded | The id the client knows.
-- column: cause derived | What held blocks: a cause of table `pin`, or waiting, as in `pinned-blocks`.
-- column: events derived | Steps in which it was refused, or preemptions, while that cause held blocks.
-- column: forced inferred | Of those: all blocks held so would have sufficed.
-- column: forced_alone inferred | Of those: this cause's blocks alone would have sufficed.
-- column: forced_wall_ms [ms] inferred | Wall time of the steps that `forced_alone` counts; NULL where there are none.
-- column: forced_waited_ms [ms] inferred | The same times the requests waiting in each of them: requests' time.
-- column: first_step [steps] recorded | The first of the events.
-- column: last_step [steps] recorded | The last of the events.
-- column: max_need_blocks [blocks] recorded | Most blocks asked for; NULL for preemptions.
-- column: mean_free_blocks [blocks] recorded | Mean number of free blocks; NULL for preemptions.
-- column: mean_held_blocks [blocks] derived | Mean number of blocks the cause held.
-- column: owners derived | Different requests whose KV the pins of that cause held, over all events; NULL where unknown.

WITH looked_up AS (
    -- The lookup goes before the allocation by microseconds; a scheduler may release pins later in the same step.
    SELECT engine_id, step, request, max(time_ns) AS time_ns
    FROM prefix_lookup
    WHERE NOT admitted
    GROUP BY engine_id, step, request
), event AS (
    SELECT
        s.engine_id,
        'refused' AS kind,
        limit_request AS request,
        s.step,
        coalesce(l.time_ns, scheduled_ns) AS time_ns,
        limit_need_blocks AS need,
        limit_free_blocks AS free,
        interval_ns,
        waiting
    FROM step s
    LEFT JOIN looked_up l ON l.engine_id = s.engine_id AND l.step = s.step AND l.request = s.limit_request
    WHERE admission_limit = 'kv_insufficient' AND limit_need_blocks IS NOT NULL
    UNION ALL
    -- Just before it: from then on until they are freed, the request's own blocks are those of one that waits.
    SELECT engine_id, 'preempted', request, step, time_ns - 1, NULL, NULL, NULL, NULL
    FROM request_event
    WHERE op = 'preempt'
), moment AS (
    SELECT DISTINCT engine_id, time_ns FROM event
), edge AS NOT MATERIALIZED (
    -- Bins of a 65,536th of the time: what lies in other bins than a moment's is added up bin by bin, unsorted.
    SELECT engine_id, held_by AS cause, start_ns AS ns, 1 AS blocks
    FROM block_hold WHERE held_by NOT IN ('running', 'prefix_sharing')
    UNION ALL
    SELECT engine_id, held_by, end_ns, -1 FROM block_hold WHERE held_by NOT IN ('running', 'prefix_sharing')
), bounds AS (
    SELECT min(start_ns) AS low_ns, (max(end_ns) - min(start_ns)) // 65536 + 1 AS width_ns FROM block_hold
), level AS (
    SELECT
        engine_id, cause, bin,
        (sum(blocks) OVER (PARTITION BY engine_id, cause ORDER BY bin))::BIGINT AS blocks
    FROM (
        SELECT engine_id, cause, (ns - low_ns) // width_ns AS bin, sum(blocks) AS blocks
        FROM edge, bounds GROUP BY ALL
    )
), binned AS (
    SELECT engine_id, time_ns, (time_ns - low_ns) // width_ns AS bin FROM moment, bounds
), held AS (
    SELECT engine_id, time_ns, cause, sum(blocks)::BIGINT AS blocks
    FROM (
        SELECT m.engine_id, m.time_ns, l.cause, l.blocks
        FROM (
            SELECT b.*, c.cause FROM binned b JOIN (SELECT DISTINCT engine_id, cause FROM level) c USING (engine_id)
        ) m ASOF JOIN level l ON m.engine_id = l.engine_id AND m.cause = l.cause AND m.bin > l.bin
        UNION ALL
        SELECT m.engine_id, m.time_ns, e.cause, e.blocks
        FROM binned m
        JOIN (SELECT *, (ns - low_ns) // width_ns AS bin FROM edge, bounds) e USING (engine_id, bin)
        WHERE e.ns <= m.time_ns
    )
    GROUP BY ALL
    HAVING sum(blocks) > 0
), met AS (
    SELECT e.*, h.cause, h.blocks AS held FROM event e JOIN held h USING (engine_id, time_ns)
), judged AS (
    SELECT
        *,
        sum(held) OVER (PARTITION BY engine_id, kind, request, step, time_ns) AS all_held,
        coalesce(need - free, 1) AS short
    FROM met
), numbered AS MATERIALIZED (
    SELECT engine_id, time_ns, row_number() OVER (PARTITION BY engine_id ORDER BY time_ns) AS n FROM moment
), first AS (
    SELECT p.engine_id, p.cause, p.request, p.end_ns, n.n
    FROM (
        SELECT engine_id, cause::VARCHAR AS cause, request, start_ns, coalesce(end_ns, 9223372036854775807) AS end_ns
        FROM pin
    ) p ASOF JOIN numbered n ON p.engine_id = n.engine_id AND p.start_ns <= n.time_ns
), covered AS (
    -- The moments at which a pin held its block, by number.
    SELECT f.engine_id, f.cause, f.request, f.n AS first_n, n.n AS last_n
    FROM first f ASOF JOIN numbered n ON f.engine_id = n.engine_id AND f.end_ns > n.time_ns
), owning AS (
    SELECT engine_id, cause, request AS owner, unnest(range(first_n, last_n + 1)) AS n
    FROM covered WHERE first_n <= last_n
), owner AS (
    SELECT m.engine_id, m.kind, m.request, m.cause, count(DISTINCT o.owner) AS owners
    FROM met m JOIN numbered USING (engine_id, time_ns) JOIN owning o USING (engine_id, n, cause)
    GROUP BY ALL
)
SELECT
    j.engine_id,
    j.kind,
    j.request,
    any_value(r.external_id) AS external_id,
    j.cause,
    count(*) AS events,
    count(*) FILTER (short <= all_held) AS forced,
    count(*) FILTER (short <= held) AS forced_alone,
    sum(interval_ns) FILTER (short <= held) / 1e6 AS forced_wall_ms,
    sum(interval_ns * waiting) FILTER (short <= held) / 1e6 AS forced_waited_ms,
    min(step) AS first_step,
    max(step) AS last_step,
    max(need) AS max_need_blocks,
    avg(free) AS mean_free_blocks,
    avg(held) AS mean_held_blocks,
    nullif(any_value(o.owners), 0) AS owners
FROM judged j
LEFT JOIN owner o USING (engine_id, kind, request, cause)
LEFT JOIN request r ON r.request = j.request
GROUP BY j.engine_id, j.kind, j.request, j.cause
ORDER BY j.engine_id, first_step, j.kind, j.request, j.cause
