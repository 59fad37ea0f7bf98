"""kvtrace's own NVTX records in an export: what aligns its clock, and the ranges that say who works for which step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import duckdb

from kvtrace.ingest.gpu import align
from kvtrace.ingest.gpu.align import Alignment, Readings
from kvtrace.ingest.gpu.enums import AlignmentMethod, Attribution
from kvtrace.ingest.gpu.timeline import Range
from kvtrace.ingest.importers.nsight.export import Export

DOMAIN = "kvtrace"
_MARK, _PUSH_POP, _START_END, _DOMAIN = 34, 59, 60, 75
_METHODS = {
    "step": Attribution.nvtx_step,
    "forward": Attribution.nvtx_forward,
    "sample": Attribution.nvtx_sample,
}
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_NEEDED = {"start", "end", "eventtype", "globaltid", "domainid"}


class Clock(NamedTuple):
    """A reading of CLOCK_MONOTONIC inside a profile: when, in the profile's time, and what it said."""

    pid: int
    at_ns: int
    monotonic_ns: int


class Marks(NamedTuple):
    """kvtrace's ranges and clock marks, in the export's own time."""

    ranges: list[Range]
    clocks: list[Clock]


def read_marks(export: Export) -> Marks:
    """Read kvtrace's NVTX records; none where there are none."""
    marks = Marks([], [])
    actual = export.columns.get("NVTX_EVENTS", {})
    if not actual.keys() >= _NEEDED:
        return marks
    text = [actual[name] for name in ("text", "textid") if name in actual]
    payloads = [f'"{actual[name.lower()]}"' for name in _PAYLOADS if name.lower() in actual]
    payload = f"coalesce({', '.join([*payloads, 'NULL', 'NULL'])})"
    names = ", ".join(f'"{name}"' for name in text) or "NULL"
    query = (
        f'SELECT "start", "end", eventType, globalTid, domainId, {payload}, {names} FROM {export.sql("NVTX_EVENTS")} '
        "WHERE globalTid IS NOT NULL AND eventType "
    )
    domains = {
        (row[3] >> 24, row[4])
        for row in export.connection.execute(query + f"= {_DOMAIN}")
        if _name(export, row[6:]) == DOMAIN
    }
    if not domains:
        return marks
    numbers = ", ".join(sorted({str(int(domain)) for _, domain in domains}))
    kinds = f"IN ({_MARK}, {_PUSH_POP}, {_START_END}) AND domainId IN ({numbers})"
    for start, end, kind, thread, domain, value, *texts in export.connection.execute(query + kinds):
        if (thread >> 24, domain) not in domains or not isinstance(value, int) or not isinstance(start, int):
            continue
        pid, name = (thread >> 24) & 0xFFFFFF, _name(export, texts)
        if kind == _MARK and name == "clock":
            marks.clocks.append(Clock(pid, start, value))
        elif kind != _MARK and name in _METHODS and isinstance(end, int) and 0 <= value < 1 << 31:
            marks.ranges.append(Range(pid, thread & 0xFFFFFF, start, end, _METHODS[name], value))
    return marks


def _name(export: Export, texts: Iterable[object]) -> str | None:
    for text in texts:
        if isinstance(text, str) and text:
            return text
        if isinstance(text, int):
            return export.name(text)
    return None


def choose_alignment(
    connection: duckdb.DuckDBPyConnection, export: Export, marks: Marks
) -> tuple[Alignment, list[Readings]]:
    """Conversion of the export's times to UNIX time, with every kind of reading that speaks for or against it."""
    readings = [
        found
        for found in (_clock_readings(connection, marks), *_range_readings(connection, marks))
        if len(found.source_ns)
    ]
    if readings:
        if export.session_start_ns is not None:
            readings.append(_epoch_reading(export.session_start_ns, readings[0]))
        return align.fit(readings[0]), readings
    if export.session_start_ns is not None:
        return Alignment(AlignmentMethod.utc_epoch, export.session_start_ns), []
    return Alignment(AlignmentMethod.none, 0), []


def _epoch_reading(session_start_ns: int, best: Readings) -> Readings:
    """Return the export's own word about UNIX time, at the middle of the better readings."""
    middle = int(best.source_ns[len(best.source_ns) // 2])
    return align.readings(AlignmentMethod.utc_epoch, [(middle, middle + session_start_ns)])


def _clock_readings(connection: duckdb.DuckDBPyConnection, marks: Marks) -> Readings:
    """Clock marks of recorded processes, whose monotonic clock the recording turns into UNIX time."""
    rows = connection.execute(
        "SELECT p.pid, any_value(c.offset_ns) FROM process p JOIN clock c USING (process_id) GROUP BY p.pid "
        "HAVING count(DISTINCT c.offset_ns) = 1"
    ).fetchall()
    offset_of = dict(rows)
    offsets = set(offset_of.values())
    fallback = offsets.pop() if len(offsets) == 1 else None  # one host: its clock is every process's
    pairs = []
    for clock in marks.clocks:
        offset_ns = offset_of.get(clock.pid, fallback)
        if offset_ns is not None:
            pairs.append((clock.at_ns, clock.monotonic_ns + offset_ns))
    return align.readings(AlignmentMethod.clock_marks, pairs)


def _range_readings(connection: duckdb.DuckDBPyConnection, marks: Marks) -> list[Readings]:
    """Starts of kvtrace's ranges and of what it recorded at the same moments."""
    found = []
    for method, attribution, table, process in (
        (AlignmentMethod.forward_ranges, Attribution.nvtx_forward, "forward", "process_id"),
        (AlignmentMethod.step_ranges, Attribution.nvtx_step, "step_schedule", "engine_id"),
    ):
        rows = connection.execute(
            f"SELECT p.pid, t.step, min(t.start_ns) FROM {table} t JOIN process p ON p.process_id = t.{process} "
            "GROUP BY ALL HAVING count(*) = 1"
        ).fetchall()
        recorded = {(pid, step): start_ns for pid, step, start_ns in rows}
        pairs = [
            (each.start_ns, recorded[each.pid, each.step])
            for each in marks.ranges
            if each.method is attribution and recorded.get((each.pid, each.step)) is not None
        ]
        found.append(align.readings(method, pairs))
    return found
