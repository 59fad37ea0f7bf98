"""Blocks held by something else than a running request."""

from __future__ import annotations

from kvtrace import events
from kvtrace.viewer.data_set import Column, DataSet, LaneTable, enumerated, key, known, numbers

TABLE = LaneTable(
    DataSet(
        "pins",
        "A block held by something else than a running request; columns of view `pin`.",
        100_000,
        (
            Column("pin"),
            known("block"),
            enumerated("cause", events.PinCause),
            Column("request"),
            key("start_ns"),
            *numbers("end_ns requested_ttl_ns"),
            enumerated("end_reason", events.PinEnd),
        ),
    ),
    "pin_start",
    """
    SELECT pin, block_id AS block, cause::VARCHAR AS cause, request, start_ns - {origin} AS start_ns,
        end_ns - {origin} AS end_ns, requested_ttl_ns, end_reason::VARCHAR AS end_reason
    FROM pin WHERE engine_id = {engine} AND start_ns IS NOT NULL ORDER BY start_ns, pin, block_id
    """,
)
