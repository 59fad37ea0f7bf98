"""Transfers between tiers, pins, and the blocks that offload tiers hold."""

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
    WITH level AS (
        SELECT tier::VARCHAR AS tier, connector, time_ns, place, occupied_blocks
        FROM tier_occupancy WHERE engine_id = {engine}
    )
    SELECT tier, connector, max(time_ns) - {origin} AS start_ns, arg_max(occupied_blocks, place) AS occupied_blocks,
        max(occupied_blocks) AS most_blocks
    FROM level, (SELECT min(time_ns) AS low, max(time_ns) - min(time_ns) + 1 AS width FROM level)
    GROUP BY tier, connector, (time_ns - low) * {bins} // width ORDER BY start_ns
"""
"""Blocks that a tier holds after each stretch in which that changed (derived from its writes and evictions)."""

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
