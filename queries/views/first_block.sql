-- A request, with the content of its first block and who else had it.
--
-- Requests that share no first block share no prefix that vLLM could reuse. A request whose first block never became
-- full or was not cached has no row. It reads all block events, so ask once.
--
-- needs: block_event, block_table, prefix_lookup, request
-- column: request recorded | The request.
-- column: engine_id recorded | The engine.
-- column: block_hash derived | Content hash of its first block, in KV cache group 0.
-- column: earlier_requests [requests] derived | Requests of the engine with the same first block, admitted before it.
-- column: later_requests [requests] derived | The same, admitted after it.

WITH looked_up AS (
    -- Requests of one step are admitted at one time, but a later one may hit what an earlier one has just stored.
    SELECT request, min(time_ns) AS ns FROM prefix_lookup WHERE admitted GROUP BY request
), held AS (
    SELECT
        t.engine_id, t.request, arg_min(t.block_id, t.step) AS block_id,
        any_value(coalesce(l.ns, r.scheduled_ns)) AS ns, any_value(r.local_cached_tokens) > 0 AS hit
    FROM block_table t JOIN request r USING (request) LEFT JOIN looked_up l USING (request)
    WHERE t.kv_group = 0 AND t.position = 0 GROUP BY t.engine_id, t.request
), cached AS (
    SELECT engine_id, block_id, time_ns, block_hash
    FROM block_event WHERE pool = 0 AND op = 'cache' AND kv_group = 0
), content AS (
    -- A hit block was cached before the request was admitted; another becomes cached when it is full.
    SELECT h.engine_id, h.request, h.ns, c.block_hash
    FROM (FROM held WHERE hit) h ASOF JOIN cached c
        ON h.engine_id = c.engine_id AND h.block_id = c.block_id AND h.ns >= c.time_ns
    UNION ALL
    SELECT h.engine_id, h.request, h.ns, c.block_hash
    FROM (FROM held WHERE hit IS DISTINCT FROM true) h
    ASOF JOIN cached c ON h.engine_id = c.engine_id AND h.block_id = c.block_id AND h.ns <= c.time_ns
    JOIN request r ON r.request = h.request
    WHERE r.finished_ns IS NULL OR c.time_ns <= r.finished_ns
)
SELECT
    request, engine_id, block_hash,
    row_number() OVER admitted - 1 AS earlier_requests,
    count(*) OVER (PARTITION BY engine_id, block_hash) - row_number() OVER admitted AS later_requests
FROM content WINDOW admitted AS (PARTITION BY engine_id, block_hash ORDER BY ns, request)
