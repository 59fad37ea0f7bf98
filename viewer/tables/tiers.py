"""Blocks that offload tiers hold over time (derived from their writes and evictions)."""

from __future__ import annotations

from kvtrace import events
from kvtrace.viewer.data_set import Column, DataSet, LaneTable, enumerated, key, numbers

TABLE = LaneTable(
    DataSet(
        "tiers",
        "Blocks that an offload tier holds after a stretch in which that changed.",
        100_000,
        (
            enumerated("tier", events.Tier),
            Column("connector", "text"),
            key("start_ns", "the last change in the stretch"),
            *numbers("occupied_blocks most_blocks"),
        ),
    ),
    "tier_block",
    """
    WITH level AS (
        SELECT tier::VARCHAR AS tier, connector, time_ns, place, occupied_blocks
        FROM tier_occupancy WHERE engine_id = {engine}
    )
    SELECT tier, connector, max(time_ns) - {origin} AS start_ns, arg_max(occupied_blocks, place) AS occupied_blocks,
        max(occupied_blocks) AS most_blocks
    FROM level, (SELECT min(time_ns) AS low, max(time_ns) - min(time_ns) + 1 AS width FROM level)
    GROUP BY tier, connector, (time_ns - low) * {bins} // width ORDER BY start_ns
    """,
)
