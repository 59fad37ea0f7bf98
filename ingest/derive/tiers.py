"""Losses of offload tiers, for misses, and their speed, for prices, where the trace has any.

The tables of transfers are declared elsewhere, and a trace may lack them.
"""

from __future__ import annotations

import duckdb

_NO_LOSS = """
CREATE TEMP TABLE tier_loss (engine_id INTEGER, request INTEGER, step INTEGER, evicted_ns BIGINT)
"""

_LOSS = """
CREATE TEMP TABLE tier_loss AS
WITH emptied AS (
    SELECT engine_id, time_ns FROM tier_block WHERE op::VARCHAR = 'reset'
), change AS (
    SELECT engine_id, block_hash, time_ns, op::VARCHAR AS op FROM tier_block WHERE op::VARCHAR IN ('store', 'evict')
), last_change AS (
    SELECT m.engine_id, m.request, m.step, m.time_ns, c.time_ns AS change_ns, c.op
    FROM (SELECT * FROM missing WHERE block_hash IS NOT NULL) m ASOF JOIN change c
        ON m.engine_id = c.engine_id AND m.block_hash = c.block_hash AND m.time_ns >= c.time_ns
)
SELECT l.engine_id, l.request, l.step, CASE l.op WHEN 'evict' THEN l.change_ns ELSE e.time_ns END AS evicted_ns
FROM last_change l ASOF LEFT JOIN emptied e ON l.engine_id = e.engine_id AND l.change_ns < e.time_ns
WHERE l.op = 'evict' OR e.time_ns <= l.time_ns
"""
"""Blocks whose last change in a tier was an eviction, or whose tier was emptied after they were stored there."""

_RATE = """
INSERT INTO transfer_rate
WITH moved AS (
    SELECT engine_id, direction::VARCHAR AS direction, bytes, device_ns, reported_ns, finished_ns,
        coalesce(started_ns, submitted_ns) AS begun_ns,
        max(finished_ns) OVER (
            PARTITION BY engine_id, process_id, direction ORDER BY coalesce(started_ns, submitted_ns), finished_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS busy_until_ns
    FROM transfer
    WHERE bytes > 0 AND coalesce(success, true) AND 'gpu' IN (from_tier::VARCHAR, to_tier::VARCHAR)
), timed AS (
    SELECT engine_id, direction, bytes, unnest(['device', 'reported', 'host']) AS basis,
        unnest([device_ns, reported_ns,
            finished_ns - least(finished_ns, greatest(begun_ns, coalesce(busy_until_ns, begun_ns)))]) AS ns,
        unnest([device_ns > 0, reported_ns > 0, finished_ns > begun_ns]) AS known
    FROM moved
), summed AS (
    SELECT engine_id, direction, basis, count(*) AS transfers, sum(bytes)::BIGINT AS bytes, sum(ns)::BIGINT AS busy_ns
    FROM timed WHERE known GROUP BY engine_id, direction, basis
)
SELECT *, bytes / (busy_ns / 1e9) FROM summed
QUALIFY row_number() OVER (PARTITION BY engine_id, direction ORDER BY basis = 'host', basis) = 1
ORDER BY engine_id, direction
"""
"""Rates, by the best time that was recorded. Wall time in which a worker's transfers overlap counts once."""


def gather(connection: duckdb.DuckDBPyConnection) -> None:
    """Make temporary table `tier_loss`: missing blocks that an offload tier had and lost."""
    known = _has(connection, "tier_block", {"engine_id", "block_hash", "time_ns", "op"})
    connection.execute(_LOSS if known else _NO_LOSS)


def forget(connection: duckdb.DuckDBPyConnection) -> None:
    """Drop it."""
    connection.execute("DROP TABLE IF EXISTS temp.tier_loss")


def insert_transfer_rate(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill table `transfer_rate` from table or view `transfer`, if there is one."""
    times = {"submitted_ns", "started_ns", "finished_ns", "device_ns", "reported_ns"}
    rest = {"engine_id", "process_id", "direction", "from_tier", "to_tier", "bytes", "success"}
    if _has(connection, "transfer", times | rest):
        connection.execute(_RATE)


def _has(connection: duckdb.DuckDBPyConnection, table: str, columns: set[str]) -> bool:
    found = connection.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [table]).fetchall()
    return columns <= {str(name) for (name,) in found}
