"""Table `discarded`: what a flight recorder removed while it went on, and from where on the streams are whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import duckdb

from kvtrace.format.reader import ProcessRecording
from kvtrace.ingest.schema.declare import BIGINT, INTEGER, TEXT, Table, column

DISCARDED = Table(
    "discarded",
    "Records that a flight recorder (`kvtrace record --keep-last`) discarded, by process and stream; else empty.",
    (
        column("process_id", INTEGER, "The process."),
        column("event", TEXT, "The event; tiles: the files of tiles, whose records are steps."),
        column("files", BIGINT, "Segment files that went."),
        column("records", BIGINT, "Whole records in them."),
        column("bytes", BIGINT, "Bytes they took on disk."),
        column("carried", BIGINT, "Of the records, those that are in the trace: they were still in force."),
        column("begins_ns", BIGINT, "From here on the stream is whole; earlier rows are carried ones."),
    ),
)


def insert_discarded(
    connection: duckdb.DuckDBPyConnection, processes: Sequence[ProcessRecording], offsets_ns: Sequence[int]
) -> list[str]:
    """Fill the table; returns a warning if anything was discarded."""
    for number, (process, offset_ns) in enumerate(zip(processes, offsets_ns, strict=True), 1):
        segments = process.segments() if process.discards.streams else {}
        for event, gone in sorted(process.discards.streams.items()):
            carried = sum(segment.slots for segment in segments.get(event, []) if segment.carried)
            connection.execute(
                "INSERT INTO discarded VALUES (?, ?, ?, ?, ?, ?, ?)",
                [number, event, gone.files, gone.records, gone.bytes, carried, gone.begins_ns + offset_ns],
            )
    row = connection.execute(
        "SELECT sum(records) FILTER (event <> 'tiles')::BIGINT, sum(bytes)::BIGINT, sum(carried)::BIGINT, "
        "max(begins_ns) FROM discarded"
    ).fetchone()
    if row is None or row[3] is None:
        return []
    begins = datetime.fromtimestamp(row[3] / 1e9, UTC)
    return [
        f"this is the last part of a longer recording: {row[0] or 0:,} records ({row[1] / 1e6:,.1f} MB) were "
        f"discarded; it is complete from {begins:%Y-%m-%d %H:%M:%S} UTC on, and has {row[2]:,} earlier records that "
        "were still in force"
    ]


def begins_ns(connection: duckdb.DuckDBPyConnection) -> int | None:
    """Return the time from which all streams are complete; None if nothing was discarded."""
    row = connection.execute("SELECT max(begins_ns) FROM discarded").fetchone()
    return None if row is None or row[0] is None else int(row[0])
