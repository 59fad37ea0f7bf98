"""Other movers and holders of KV: transfers between tiers, pins, and how full the offload tiers are."""

from __future__ import annotations

from typing import Any

from kvtrace.viewer.chunks import Writer
from kvtrace.viewer.contract import PINS, TIERS, TRANSFERS
from kvtrace.viewer.source import Source

CHUNK_ROWS = 32_768
TIER_BINS = 8192

_TRANSFERS = """
    SELECT transfer, process_id, connector, direction::VARCHAR AS direction, from_tier::VARCHAR AS from_tier,
        to_tier::VARCHAR AS to_tier, bytes, blocks, requests, step, success,
        submitted_ns - {origin} AS start_ns, started_ns - {origin} AS started_ns,
        finished_ns - {origin} AS end_ns, device_ns, reported_ns
    FROM transfer WHERE engine_id = {engine} AND submitted_ns IS NOT NULL ORDER BY submitted_ns, transfer, process_id
"""

_PINS = """
    SELECT pin, block_id AS block, cause::VARCHAR AS cause, request, start_ns - {origin} AS start_ns,
        end_ns - {origin} AS end_ns, requested_ttl_ns, end_reason::VARCHAR AS end_reason
    FROM pin WHERE engine_id = {engine} AND start_ns IS NOT NULL ORDER BY start_ns, pin, block_id
"""

_TIERS = """
    WITH life AS (
        SELECT tier::VARCHAR AS tier, connector, time_ns, place, op,
            lag(op) OVER (PARTITION BY connector, tier, tier_block_id, era ORDER BY place) AS before, era
        FROM (
            SELECT *, rowid AS place,
                count_if(op = 'reset') OVER (PARTITION BY connector, tier ORDER BY rowid) AS era
            FROM tier_block WHERE engine_id = {engine}
        )
    ),
    change AS (
        SELECT *, CASE
            WHEN op = 'write' THEN (before IS NULL OR before IN ('evict', 'drop', 'reset'))::INTEGER
            WHEN op IN ('evict', 'drop')
                THEN -(before IS NOT NULL AND before NOT IN ('evict', 'drop', 'reset'))::INTEGER
            ELSE 0 END AS change
        FROM life
    ),
    level AS (
        SELECT tier, connector, time_ns, place,
            sum(change) OVER (PARTITION BY connector, tier, era ORDER BY place)::BIGINT AS occupied_blocks
        FROM change
    )
    SELECT tier, connector, max(time_ns) - {origin} AS start_ns, arg_max(occupied_blocks, place) AS occupied_blocks,
        max(occupied_blocks) AS most_blocks
    FROM level, (SELECT min(time_ns) AS low, max(time_ns) - min(time_ns) + 1 AS width FROM level)
    GROUP BY tier, connector, (time_ns - low) * {bins} // width ORDER BY start_ns
"""
"""Number of blocks in a tier after each stretch in which that changed (derived from its writes and evictions)."""

_CAPACITY = """
    SELECT tier, max(capacity_blocks) AS capacity_blocks FROM connector
    WHERE process_id = {engine} AND tier IS NOT NULL GROUP BY tier
"""


_TABLES = (
    (TRANSFERS, "transfer_submit", _TRANSFERS),
    (PINS, "pin_start", _PINS),
    (TIERS, "tier_block", _TIERS),
)
"""Data sets with the table without whose rows there is nothing, and the query."""


def export_moves(source: Source, writer: Writer, engine: int, origin_ns: int) -> dict[str, Any]:
    """An engine's transfers, pins and tiers; empty lists where nothing was recorded."""
    places = {"engine": engine, "origin": origin_ns, "bins": TIER_BINS}
    found: dict[str, Any] = {data.name: [] for data, *_ in _TABLES} | {"tier_capacity": {}}
    for data, needed, query in _TABLES:
        if source.has(needed, f"engine_id = {engine}"):
            found[data.name] = writer.add_cut(data.name, source.table(query.format(**places)), CHUNK_ROWS, data)
    if source.has("connector", f"process_id = {engine}"):
        capacity = source.rows(_CAPACITY.format(engine=engine))
        found["tier_capacity"] = {row["tier"]: row["capacity_blocks"] for row in capacity}
    return found
