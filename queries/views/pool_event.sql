-- An event of a block of the GPU pool, and how many blocks had been allocated by then.
--
-- Only differences of the count between rows of one engine mean something. So where each engine's rows lie together, as
-- ingest writes them, one count in table order will do, and that streams; where they are mixed, they are sorted apart.
--
-- needs: block_event
-- column: engine_id recorded | The engine.
-- column: block derived | The block, over all engines: engine_id times 2 to the 32, and block_id.
-- column: op recorded | What happened.
-- column: ref_count [requests] recorded | References after it.
-- column: time_ns [ns] recorded | When.
-- column: place derived | Its place among the block events (`rowid` of `block_event`).
-- column: allocated_blocks [blocks] derived | Blocks allocated so far, of its engine or also of those before it.

WITH event AS NOT MATERIALIZED (
    SELECT engine_id, engine_id::BIGINT << 32 | block_id AS block, op, ref_count, time_ns, rowid AS place
    FROM block_event
    WHERE pool = 0
), layout AS (
    SELECT coalesce(bool_or(last_place - first_place + 1 <> events), false) AS mixed
    FROM (
        SELECT engine_id, min(rowid) AS first_place, max(rowid) AS last_place, count(*) AS events
        FROM block_event GROUP BY engine_id
    )
)
-- sqruff parses no frame without an order
SELECT *, (count(*) FILTER (op = 'allocate') OVER (ROWS UNBOUNDED PRECEDING))::INTEGER AS allocated_blocks  -- noqa
FROM event WHERE NOT (SELECT mixed FROM layout)
UNION ALL
SELECT *, (sum((op = 'allocate')::INTEGER) OVER (PARTITION BY engine_id ORDER BY place))::INTEGER
FROM event WHERE (SELECT mixed FROM layout)
