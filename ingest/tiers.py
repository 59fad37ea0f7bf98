"""What offload tiers did, where the trace knows of any: their losses for misses, their speed for prices.

The tables of transfers are declared elsewhere, and a trace may lack them.
"""

from __future__ import annotations

import duckdb

_NO_LOSS = """
CREATE TEMP TABLE tier_loss (engine_id INTEGER, request INTEGER, step INTEGER, evicted_ns BIGINT)
"""

_LOSS = """
CREATE TEMP TABLE tier_loss AS
SELECT m.engine_id, m.request, m.step, t.time_ns AS evicted_ns
FROM (SELECT * FROM missing WHERE block_hash IS NOT NULL) m ASOF JOIN (
    SELECT engine_id, hash, time_ns, op::VARCHAR AS op FROM tier_block WHERE op::VARCHAR IN ('stored', 'evicted')
) t ON m.engine_id = t.engine_id AND m.block_hash = t.hash AND m.time_ns >= t.time_ns
WHERE t.op = 'evicted'
"""

_RATE = """
INSERT INTO transfer_rate
WITH moved AS (
    SELECT engine_id, direction::VARCHAR AS direction, bytes, started_ns, finished_ns,
        max(finished_ns) OVER (
            PARTITION BY engine_id, direction ORDER BY started_ns, finished_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS busy_until_ns
    FROM transfer
    WHERE finished_ns > started_ns AND bytes > 0
), summed AS (
    SELECT engine_id, direction, count(*) AS transfers, sum(bytes)::BIGINT AS bytes,
        sum(greatest(finished_ns - greatest(started_ns, coalesce(busy_until_ns, started_ns)), 0))::BIGINT AS busy_ns
    FROM moved GROUP BY engine_id, direction
)
SELECT *, bytes / (busy_ns / 1e9) FROM summed ORDER BY engine_id, direction
"""
"""Transfers under way at the same time share the wall time: it counts once."""


def gather(connection: duckdb.DuckDBPyConnection) -> None:
    """Make temporary table `tier_loss`: missing blocks whose last change in the offload tier was an eviction."""
    known = _has(connection, "tier_block", {"engine_id", "hash", "time_ns", "op"})
    connection.execute(_LOSS if known else _NO_LOSS)


def forget(connection: duckdb.DuckDBPyConnection) -> None:
    """Drop it."""
    connection.execute("DROP TABLE IF EXISTS temp.tier_loss")


def insert_transfer_rate(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill table `transfer_rate` from table `transfer`, if there is one."""
    if _has(connection, "transfer", {"engine_id", "direction", "bytes", "started_ns", "finished_ns"}):
        connection.execute(_RATE)


def _has(connection: duckdb.DuckDBPyConnection, table: str, columns: set[str]) -> bool:
    found = connection.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [table]).fetchall()
    return columns <= {str(name) for (name,) in found}
