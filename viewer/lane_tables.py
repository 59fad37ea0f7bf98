"""Exports the tables of `tables/`, and the room of each offload tier."""

from __future__ import annotations

from typing import Any

from kvtrace.viewer import tables
from kvtrace.viewer.chunks import Reference, Writer
from kvtrace.viewer.source import Source

CHUNK_ROWS = 32_768
BINS = 8192

_CAPACITY = """
    SELECT tier, max(capacity_blocks) AS capacity_blocks FROM connector
    WHERE process_id = {engine} AND tier IS NOT NULL GROUP BY tier
"""


def export_lane_tables(source: Source, writer: Writer, engine: int, origin_ns: int) -> dict[str, list[Reference]]:
    """An engine's chunks by table; an empty list where nothing was recorded."""
    places = {"engine": engine, "origin": origin_ns, "bins": BINS}
    return {
        data.name: writer.add_cut(data.name, source.table(query.format(**places)), CHUNK_ROWS, data)
        if source.has(needs, f"engine_id = {engine}")
        else []
        for data, needs, query in tables.declared()
    }


def tier_capacity(source: Source, engine: int) -> dict[str, Any]:
    """Blocks that an engine's tiers have room for."""
    if not source.has("connector", f"process_id = {engine}"):
        return {}
    return {row["tier"]: row["capacity_blocks"] for row in source.rows(_CAPACITY.format(engine=engine))}
