"""Copies of KV between tiers."""

from __future__ import annotations

from kvtrace import events
from kvtrace.viewer.data_set import Column, DataSet, LaneTable, enumerated, key, known, numbers

TABLE = LaneTable(
    DataSet(
        "transfers",
        "A copy of KV between tiers; columns of view `transfer`.",
        100_000,
        (
            known("transfer"),
            Column("process_id"),
            Column("connector", "text"),
            enumerated("direction", events.Direction),
            enumerated("from_tier", events.Tier),
            enumerated("to_tier", events.Tier),
            *numbers("bytes blocks requests step"),
            Column("success", "flag"),
            key("start_ns", "submitted"),
            Column("started_ns"),
            Column("end_ns", doc="known as ended"),
            Column("device_ns", doc="the copy's time on the GPU"),
            Column("reported_ns", doc="the copy's time as the connector reports it"),
        ),
    ),
    "transfer_submit",
    """
    SELECT transfer, process_id, connector, direction::VARCHAR AS direction, from_tier::VARCHAR AS from_tier,
        to_tier::VARCHAR AS to_tier, bytes, blocks, requests, step, success,
        submitted_ns - {origin} AS start_ns, started_ns - {origin} AS started_ns,
        finished_ns - {origin} AS end_ns, device_ns, reported_ns
    FROM transfer WHERE engine_id = {engine} AND submitted_ns IS NOT NULL ORDER BY submitted_ns, transfer, process_id
    """,
)
