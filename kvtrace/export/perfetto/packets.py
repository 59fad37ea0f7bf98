"""Rows of a source as Perfetto's packets, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    InternedData,
    Trace,
    TracePacket,
    TrackEvent,
)

from kvtrace.export.perfetto.source import Source
from kvtrace.export.perfetto.tracks import Tracks
from kvtrace.export.perfetto.wire import (
    Column,
    Flags,
    Ints,
    Parts,
    constant,
    field,
    fixed,
    fixed64,
    nested,
    ragged,
    tag,
    tobytes,
    varint,
    where,
)

_SEQUENCE = 1
_MOST_CELLS = 32 << 20
"""Rows with long lists of arrows are encoded in smaller batches: their matrix would have no end."""

_DRAWN = ("start_ns", "end_ns", "name", "category")

_CLOCKS = (6, 1)
"""BOOTTIME, which packets are in unless they say otherwise, and REALTIME: here both are UNIX time."""


@dataclass(frozen=True)
class Drawn:
    """Rows of a source with their tracks.

    Args:
        source: Where they come from.
        rows: The rows.
        tracks: Their tracks; of counters, of each row and counter.
    """

    source: Source
    rows: pa.RecordBatch
    tracks: Ints


class Encoder:
    """Makes the packets of one file: names are written once in it, tracks are described before their first event."""

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = tracks
        self._described: set[int] = set()
        self._interned: dict[str, dict[str, int]] = {}
        self._pending = InternedData()

    def opening(self, time_ns: int) -> bytes:
        """The first packet of a file: what its times are."""
        packet = TracePacket(
            trusted_packet_sequence_id=_SEQUENCE,
            timestamp=time_ns,
            sequence_flags=TracePacket.SEQ_INCREMENTAL_STATE_CLEARED,
        )
        for clock in _CLOCKS:
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=time_ns)
        return bytes(Trace(packet=[packet]).SerializeToString())

    def encode(self, drawn: Drawn) -> Iterator[bytes]:
        """The packets of some rows, descriptors and names before them."""
        yield self._descriptors(np.unique(drawn.tracks).tolist())
        encode = self._counters if drawn.source.counters else self._slices
        for rows, tracks in _portions(drawn):
            parts = encode(drawn.source, rows, tracks)
            yield self._names()
            yield tobytes(parts)

    def _descriptors(self, numbers: list[int]) -> bytes:
        trace = Trace()
        for number in (each for leaf in numbers for each in self._tracks.with_parents(leaf)):
            if number not in self._described:
                self._described.add(number)
                self._tracks.describe(number, trace.packet.add(trusted_packet_sequence_id=_SEQUENCE))
        return bytes(trace.SerializeToString())

    def _names(self) -> bytes:
        """The names that came up since the last call."""
        names, self._pending = self._pending, InternedData()
        packet = TracePacket(
            trusted_packet_sequence_id=_SEQUENCE,
            sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
            interned_data=names,
        )
        return bytes(Trace(packet=[packet]).SerializeToString()) if names.ByteSize() else b""

    def _slices(self, source: Source, rows: pa.RecordBatch, tracks: Ints) -> Parts:
        begin = [
            *fixed(TrackEvent, "type", TrackEvent.TYPE_SLICE_BEGIN, len(rows)),
            *field(TrackEvent, "track_uuid", varint(tracks)),
            *self._category(source, rows),
            *field(TrackEvent, "name_iid", varint(self._intern("event_names", rows["name"]))),
        ]
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name.startswith("flow"):
                begin += _flows("flow_ids", column)
            elif name.startswith("terminate"):
                begin += _flows("terminating_flow_ids", column)
            elif name not in _DRAWN:
                begin += self._argument(name, column)
        end = [
            *fixed(TrackEvent, "type", TrackEvent.TYPE_SLICE_END, len(rows)),
            *field(TrackEvent, "track_uuid", varint(tracks)),
        ]
        ended = where(_packet(_ints(rows["end_ns"]), end), _valid(rows["end_ns"]))
        return [*_packet(_ints(rows["start_ns"]), begin), *ended]

    def _counters(self, source: Source, rows: pa.RecordBatch, tracks: Ints) -> Parts:
        times, parts = _ints(rows["start_ns"]), []
        for place, (column, _, _) in enumerate(source.counters):
            event = [
                *fixed(TrackEvent, "type", TrackEvent.TYPE_COUNTER, len(rows)),
                *field(TrackEvent, "track_uuid", varint(tracks[:, place])),
                *field(TrackEvent, "counter_value", varint(_ints(rows[column]))),
            ]
            parts += where(_packet(times, event), _valid(rows[column]))
        return parts

    def _category(self, source: Source, rows: pa.RecordBatch) -> Parts:
        if "category" in rows.schema.names:
            return field(TrackEvent, "category_iids", varint(self._intern("event_categories", rows["category"])))
        return fixed(TrackEvent, "category_iids", self._intern_one("event_categories", source.name), len(rows))

    def _argument(self, name: str, column: Column) -> Parts:
        number = self._intern_one("debug_annotation_names", name)
        parts = fixed(DebugAnnotation, "name_iid", number, len(column))
        if pa.types.is_boolean(column.type):
            parts += field(DebugAnnotation, "bool_value", varint(_ints(column.cast(pa.int8()))))
        elif pa.types.is_floating(column.type):
            parts += field(DebugAnnotation, "double_value", fixed64(column.fill_null(0).to_numpy(False)))
        elif pa.types.is_integer(column.type):
            kind = "uint_value" if pa.types.is_uint64(column.type) else "int_value"
            parts += field(DebugAnnotation, kind, varint(_ints(column)))
        else:
            texts = self._intern("debug_annotation_string_values", column)
            parts += field(DebugAnnotation, "string_value_iid", varint(texts))
        return where(nested(TrackEvent, "debug_annotations", parts), _valid(column))

    def _intern_one(self, kind: str, text: str) -> int:
        return int(self._intern(kind, pa.array([text]))[0])

    def _intern(self, kind: str, column: Column) -> Ints:
        """Numbers of texts, from 1; NULL gets some number."""
        known = self._interned.setdefault(kind, {})
        encoded: Column = (
            column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column.cast(pa.string()))
        )
        used = set(pc.unique(encoded.indices).to_pylist())
        numbers = []
        for index, text in enumerate(encoded.dictionary.to_pylist()):
            if index in used and text not in known:
                known[text] = len(known) + 1
                entry = getattr(self._pending, kind).add(iid=known[text])
                _set_text(entry, text)
            numbers.append(known.get(text, 0))
        places: Ints = encoded.indices.fill_null(len(numbers)).to_numpy(False)
        return np.array([*numbers, 0], np.int64)[places]


def _set_text(entry: Any, text: str) -> None:
    """Event and category names are texts, argument values bytes."""
    if "str" in entry.DESCRIPTOR.fields_by_name:
        entry.str = text.encode()
    else:
        entry.name = text


def _portions(drawn: Drawn) -> Iterator[tuple[pa.RecordBatch, Ints]]:
    """The rows in portions of bounded width."""
    widest = sum(
        int(pc.max(pc.list_value_length(column)).as_py() or 0) for column in drawn.rows.columns if _is_list(column)
    )
    step = max(1, _MOST_CELLS // (1000 + 10 * widest))
    for start in range(0, len(drawn.rows), step):
        yield drawn.rows.slice(start, step), drawn.tracks[start : start + step]


def _packet(time_ns: Ints, event: Parts) -> Parts:
    rows = len(time_ns)
    parts = [
        *field(TracePacket, "timestamp", varint(time_ns)),
        *fixed(TracePacket, "trusted_packet_sequence_id", _SEQUENCE, rows),
        *fixed(TracePacket, "sequence_flags", TracePacket.SEQ_NEEDS_INCREMENTAL_STATE, rows),
        *nested(TracePacket, "track_event", event),
    ]
    return nested(Trace, "packet", parts)


def _flows(name: str, column: Column) -> Parts:
    if not _is_list(column):
        return where([constant(tag(TrackEvent, name), len(column)), fixed64(_ints(column))], _valid(column))
    counts = pc.list_value_length(column).fill_null(0).to_numpy(False).astype(np.int64)
    return [ragged(tag(TrackEvent, name), _ints(pc.list_flatten(column)), counts)]


def _is_list(column: Column) -> bool:
    return bool(pa.types.is_list(column.type))


def _ints(column: Column) -> Ints:
    """Whole numbers; NULL as 0. Unsigned ones keep their bits."""
    values: Ints = column.fill_null(0).to_numpy(False)
    return values.astype(np.int64, copy=False)


def _valid(column: Column) -> Flags:
    valid: Flags = column.is_valid().to_numpy(False)
    return valid
