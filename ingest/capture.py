"""The importer of kvtrace's own capture log: segments to event tables.

Segments are mapped and cut into columns batch by batch; DuckDB pulls the batches, so memory does not grow with the
recording. What numpy can only do slowly (nulls, enums) is left to the INSERT's expressions, which run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvtrace.events import BOOL, ENUM, EVENTS, PROCESS, REQUEST, STRING, TIME, Event, Field, Type
from kvtrace.format.layout import SEGMENT_HEADER_BYTES
from kvtrace.format.reader import Segment
from kvtrace.format.segment import Scan, map_segment
from kvtrace.ingest import columns
from kvtrace.ingest.ids import ProcessIds

BATCH_RECORDS = 2 * 122_880
"""Whole row groups of DuckDB: others would be written twice, and make the trace half as large again."""

_NUMPY = {"q": "<i8", "i": "<i4", "I": "<u4", "Q": "<u8", "B": "u1", "?": "u1"}
_ARROW: dict[str, pa.DataType] = {
    "q": pa.int64(),
    "i": pa.int32(),
    "I": pa.uint32(),
    "Q": pa.uint64(),
    "B": pa.uint8(),
    "?": pa.uint8(),
}
_ARROW_OF_TYPE: dict[Type, pa.DataType] = {REQUEST: pa.int32(), STRING: pa.large_string()}

Progress = Callable[[int], None]
"""Called with the number of records read since the last call."""


class Source(NamedTuple):
    """One process's segments of one event, with what is needed to translate them."""

    event: Event
    process_id: int
    segments: list[Segment]
    ids: ProcessIds
    offset_ns: int
    times: tuple[int, int] | None = None
    """Range of possible times (CLOCK_MONOTONIC); records with another time are left out as overwritten."""


class Imported(NamedTuple):
    """Records read from a source."""

    records: int
    torn: int
    overwritten: int


def import_source(connection: duckdb.DuckDBPyConnection, source: Source, progress: Progress) -> Imported:
    """Append a source's whole records to its event table, in the order they were captured in."""
    reader = _Reader(source, progress)
    connection.register("captured", pa.RecordBatchReader.from_batches(_schema(source.event), reader.batches()))
    try:
        connection.execute(_insert(source))
    except BaseException:
        if reader.error is not None:  # DuckDB wraps what goes wrong while it pulls; say the real thing
            raise reader.error from None
        raise
    finally:
        connection.unregister("captured")
    return Imported(reader.records, reader.torn, reader.overwritten)


class _Reader:
    """Turns segments into record batches."""

    def __init__(self, source: Source, progress: Progress) -> None:
        self.source = source
        self.progress = progress
        self.records = 0
        self.torn = 0
        self.overwritten = 0
        self.error: BaseException | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema = _schema(self.source.event)
        try:
            for segment in self.source.segments:
                for found in whole_records(segment, self._count):
                    records = self._possible(found)
                    arrays = [_column(field, records, self.source) for field in self.source.event.fields]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                    self.progress(len(records))
        except BaseException as error:
            self.error = error
            raise

    def _count(self, scan: Scan) -> None:
        self.records += scan.records
        self.torn += scan.torn
        self.overwritten += scan.overwritten

    def _possible(self, records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """The records whose times can be."""
        if self.source.times is None:
            return records
        least, most = self.source.times
        possible = np.ones(len(records), bool)
        for field in self.source.event.fields:
            if field.type is TIME and field.name in (records.dtype.names or ()):
                times: Any = records[field.name]
                possible &= (times == TIME.null) | ((times >= least) & (times <= most))
        wrong = len(records) - int(possible.sum())
        self.records -= wrong
        self.torn += wrong
        self.overwritten += wrong
        kept: npt.NDArray[np.void] = records[possible]
        return kept


def whole_records(segment: Segment, told: Callable[[Scan], None] = lambda _: None) -> Iterator[npt.NDArray[np.void]]:
    """A segment's whole records, batch by batch; `told` what a scan of it found."""
    scan = segment.scan()
    told(scan)
    if not scan.records:
        return
    with_torn = scan.records != scan.used_slots
    slots = np.frombuffer(map_segment(segment), record_type(segment), scan.used_slots, offset=SEGMENT_HEADER_BYTES)
    for start in range(0, scan.used_slots, BATCH_RECORDS):
        batch = slots[start : start + BATCH_RECORDS]
        batch = batch[batch["whole"] == 1] if with_torn else batch
        if len(batch):
            yield batch


def record_type(segment: Segment) -> np.dtype[np.void]:
    """A segment's records as numpy sees them, with their commit byte last."""
    return np.dtype([*((field.name, _NUMPY[field.code]) for field in segment.fields), ("whole", "u1")])


def _schema(event: Event) -> pa.Schema:
    return pa.schema([(field.name, _ARROW_OF_TYPE.get(field.type, _ARROW[field.type.code])) for field in event.fields])


def _column(field: Field, records: npt.NDArray[np.void], source: Source) -> pa.Array[Any]:
    """A field of some records as an Arrow array, ids translated and times as UNIX time."""
    names: Any = records.dtype.names
    if field.name not in names:
        nothing: pa.Array[Any] = pa.nulls(len(records), _schema(source.event).field(field.name).type)
        return nothing
    values: Any = records[field.name].copy()
    label = f"{source.event.name}.{field.name}"
    if field.type is REQUEST:
        values = source.ids.requests(values, label)
    elif field.type is STRING:
        return source.ids.strings(values, label)
    elif field.type is PROCESS:
        values = source.ids.processes(values, label)
    elif field.type is TIME:
        values += source.offset_ns
    elif field.enum is not None and values.max(initial=0) > max(field.enum):
        source.ids.unknown[label] += int((values > max(field.enum)).sum())
    return columns.numbers(values, _schema(source.event).field(field.name).type)


def _insert(source: Source) -> str:
    expressions = ", ".join(_expression(field, source.offset_ns) for field in source.event.fields)
    return f"INSERT INTO {source.event.name} SELECT {source.process_id}, {expressions} FROM captured"


def _expression(field: Field, offset_ns: int) -> str:
    """SQL that makes the column of a captured field: what means "none" becomes NULL, bytes become enum values."""
    column = f'"{field.name}"'
    if field.type is ENUM and field.enum is not None:
        cases = " ".join(f"WHEN {member.value} THEN '{member.name}'::{field.sql_type}" for member in field.enum)
        return f"CASE {column} {cases} END"
    if field.type is BOOL:
        return f"{column} <> 0"
    if field.type is STRING:
        return f"nullif({column}, '')"
    if field.type.null is None:
        return column
    null = field.type.null + (offset_ns if field.type is TIME else 0)
    return f"nullif({column}, {null})"


EVENT_ORDER: tuple[str, ...] = tuple(dict.fromkeys(("request_arrival", "request_queued", *(name for name in EVENTS))))
"""The order events are imported in: those that bring requests first, so that keys follow the order of arrival."""
