"""Reading one segment file: its header, and which of its records are whole."""

from __future__ import annotations

import json
import mmap
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from kvtrace.errors import DamageError, KvtraceError, Tell, refuse
from kvtrace.events import EVENTS, SCHEMA_VERSION
from kvtrace.format import layout

LARGEST_RECORD_BYTES = 1 << 12
LARGEST_CLOCK_NS = 1 << 62
"""Clock readings beyond this (the year 2116) are damage, and sums of two below it fit in 64 bits."""

_FIELD_CODES = frozenset("qiIQB?")
_WHOLE = b"\x01"


class FieldFormat(NamedTuple):
    """A field as the segment's header declares it: name, kvtrace type name and `struct` code."""

    name: str
    type: str
    code: str


class Clock(NamedTuple):
    """Both clocks read at one moment; the realtime reading is good to `uncertainty_ns` either way."""

    monotonic_ns: int
    realtime_ns: int
    uncertainty_ns: int


class Scan(NamedTuple):
    """Scan of a segment: whole records, torn ones, and the slots to read to see every whole one.

    `overwritten` are those of the torn ones that no process can have left by dying: it writes one record at a time,
    after all others, and sets its last byte from 0 to 1.
    """

    records: int
    torn: int
    used_slots: int
    overwritten: int


@dataclass(frozen=True)
class Segment:
    """A segment file with a sound header.

    `followed` says that the process went on to a later segment. `carried`: it has the records still in force of
    discarded segments (`kvtrace.retention.compaction`).
    """

    path: Path
    event: str
    format_version: int
    schema_version: int
    fields: tuple[FieldFormat, ...]
    record_bytes: int
    pid: int
    sequence: int
    clock: Clock | None
    file_bytes: int
    followed: bool = False
    carried: bool = False

    @property
    def slots(self) -> int:
        """Records the file has room for."""
        return (self.file_bytes - layout.SEGMENT_HEADER_BYTES) // self.record_bytes

    def count(self) -> tuple[int, int]:
        """Whole and torn records, exactly; reads the whole file."""
        scan = self.scan()
        return scan.records, scan.torn

    def scan(self) -> Scan:
        """Find the whole and the torn records. A record is whole if and only if its last byte is 1."""
        if not self.slots:
            return Scan(0, 0, 0, 0)
        with map_segment(self) as data:
            end = layout.SEGMENT_HEADER_BYTES + self.slots * self.record_bytes
            marks = data[layout.SEGMENT_HEADER_BYTES + self.record_bytes - 1 : end : self.record_bytes]
            used = marks.rfind(_WHOLE) + 1
            records = marks.count(_WHOLE)
            if self.followed:
                torn = self._given_out(data, used) - records
                return Scan(records, torn, used, torn)
            behind = self._torn_after(data, used)
            last = bool(behind) and self._is_unfinished(data, used)
            torn = used - records + behind
            return Scan(records, torn, used, torn - last)

    def _given_out(self, data: mmap.mmap, used: int) -> int:
        """Places that threads were to write to in a segment that is not the last one, by its seal if it has one."""
        end = int(layout.SEGMENT_SEAL.unpack_from(data, layout.SEGMENT_SEAL_OFFSET)[0])
        sealed = (end - layout.SEGMENT_HEADER_BYTES) // self.record_bytes
        if not end or not 0 <= sealed < self.slots:
            return self.slots
        return max(sealed, used - 1)  # whoever wrote behind the seal left the place at it empty

    def _is_unfinished(self, data: mmap.mmap, slot: int) -> bool:
        """Return whether something was written to a place, but not its last byte."""
        start = layout.SEGMENT_HEADER_BYTES + slot * self.record_bytes
        record = data[start : start + self.record_bytes]
        return any(record) and not record[-1]

    def committed_estimate(self) -> int:
        """About how many records are whole, from a few reads of one byte: for a display while recording goes on."""
        with self.path.open("rb", buffering=0) as file:
            low, high = 0, self.slots
            while low < high:
                middle = (low + high) // 2
                offset = layout.SEGMENT_HEADER_BYTES + (middle + 1) * self.record_bytes - 1
                if os.pread(file.fileno(), 1, offset) == _WHOLE:
                    low = middle + 1
                else:
                    high = middle
        return low

    def _torn_after(self, data: mmap.mmap, used: int) -> int:
        """Slots after the last whole record in which something was written."""
        tail = data[layout.SEGMENT_HEADER_BYTES + used * self.record_bytes :].rstrip(b"\0")
        step = self.record_bytes
        return sum(
            1 for start in range(0, min(len(tail), (self.slots - used) * step), step) if any(tail[start : start + step])
        )


def map_segment(segment: Segment) -> mmap.mmap:
    """Map a segment for reading.

    Raises:
        KvtraceError: The file became shorter since its header was read.
    """
    with segment.path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < segment.file_bytes:
            raise DamageError(f"{segment.path} became shorter while it was read; is something else changing the run?")
        return mmap.mmap(file.fileno(), segment.file_bytes, access=mmap.ACCESS_READ)


def read_segment(path: Path, tell: Tell | None = None) -> Segment | None:
    """Read and check a segment's header.

    Returns:
        The segment, or None if it was still being made when its process died: such a file holds nothing. With `tell` a
        file that was cut off has what is left of it.

    Raises:
        KvtraceError: The file is damaged, truncated, foreign, or of a newer kvtrace.
    """
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        head = file.read(layout.SEGMENT_HEADER_BYTES)
        if not _magic(head).strip(b"\0"):
            if not _anything_in(file):
                return None
            file.seek(0)  # a live process may have finished the header meanwhile
            head = file.read(layout.SEGMENT_HEADER_BYTES)
    magic = _magic(head)
    if magic != layout.SEGMENT_MAGIC:
        raise DamageError(
            f"{path} is damaged or no kvtrace segment: it starts with {magic!r}, not {layout.SEGMENT_MAGIC!r}"
        )
    if len(head) < layout.SEGMENT_HEADER_BYTES:
        raise DamageError(f"{path} is truncated: {len(head)} bytes, a header has {layout.SEGMENT_HEADER_BYTES}")
    _, version, record_bytes, json_bytes = layout.SEGMENT_HEADER.unpack_from(head)
    check_format_version(path, version)
    start = layout.SEGMENT_HEADER.size
    header = _parse(path, head[start : start + json_bytes])
    segment = _from_header(path, header, version, record_bytes, file_bytes)
    declared = header.get("segment_bytes", file_bytes)
    if declared != file_bytes:
        refuse(f"{path} is truncated or damaged: {file_bytes} bytes, its header says {declared!r:.40}", tell)
        if isinstance(declared, int) and layout.SEGMENT_HEADER_BYTES <= declared < file_bytes:
            return replace(segment, file_bytes=declared)
    return segment


def check_format_version(path: Path, version: object) -> None:
    """Refuse files of a format this kvtrace does not know, naming both versions."""
    if version == layout.FORMAT_VERSION and not isinstance(version, bool):
        return
    newer = isinstance(version, int) and version > layout.FORMAT_VERSION
    advice = "ingest it with the kvtrace that recorded it, or a newer one" if newer else "the file is damaged"
    error = KvtraceError if newer else DamageError
    raise error(f"{path} has format version {version!r}, this kvtrace reads {layout.FORMAT_VERSION}: {advice}")


def _magic(head: bytes) -> bytes:
    return head[: len(layout.SEGMENT_MAGIC)]


def _anything_in(file: IO[bytes]) -> bool:
    """Return whether any byte from here to the end is not zero."""
    while chunk := file.read(1 << 20):
        if chunk.rstrip(b"\0"):
            return True
    return False


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DamageError(f"{path} is damaged: its header is not a JSON object: {text[:40]!r}")
    return header


def _from_header(path: Path, header: dict[str, Any], version: int, record_bytes: int, file_bytes: int) -> Segment:
    event, schema_version = header.get("event"), header.get("schema_version")
    _check_schema_version(path, schema_version)
    if not isinstance(event, str) or event not in EVENTS:
        raise DamageError(
            f"{path} holds events of type {event!r:.60}, which this kvtrace does not know: it is damaged, or was "
            "recorded by a newer kvtrace (ingest it with that one)"
        )
    fields = _fields(path, header.get("fields"), record_bytes)
    _check_types(path, event, fields)
    pid, sequence = header.get("pid"), header.get("sequence")
    if not isinstance(pid, int) or not isinstance(sequence, int):
        raise DamageError(f"{path} is damaged: its header has pid {pid!r} and sequence {sequence!r}, expected numbers")
    if path.name != layout.segment_name(event, sequence):
        raise DamageError(
            f"{path} has the header of {layout.segment_name(event, sequence)}: was it renamed or damaged?"
        )
    clock = clock_of(header)
    return Segment(path, event, version, SCHEMA_VERSION, fields, record_bytes, pid, sequence, clock, file_bytes)


def _check_schema_version(path: Path, found: object) -> None:
    if found == SCHEMA_VERSION and not isinstance(found, bool):
        return
    newer = isinstance(found, int) and found > SCHEMA_VERSION
    advice = "ingest it with the kvtrace that recorded it, or a newer one" if newer else "the file is damaged"
    error = KvtraceError if newer else DamageError
    raise error(f"{path} has schema version {found!r}, this kvtrace reads {SCHEMA_VERSION}: {advice}")


def _fields(path: Path, declared: object, record_bytes: int) -> tuple[FieldFormat, ...]:
    if not isinstance(declared, list) or not declared:
        raise DamageError(f"{path} is damaged: its header declares no fields")
    fields = []
    for field in declared:
        if not isinstance(field, list) or len(field) != 3 or not all(isinstance(part, str) for part in field):
            raise DamageError(
                f"{path} is damaged: its header declares the field {field!r}, expected [name, type, code]"
            )
        if field[2] not in _FIELD_CODES:
            raise DamageError(f"{path}: field {field[0]!r} has the unknown code {field[2]!r}; the header is damaged")
        fields.append(FieldFormat(*field))
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise DamageError(f"{path} is damaged: its header declares a field twice: {names}")
    expected = struct.calcsize("<" + "".join(field.code for field in fields)) + 1
    if record_bytes != expected or record_bytes > LARGEST_RECORD_BYTES:
        raise DamageError(f"{path} is damaged: records of {record_bytes} bytes, but its fields take {expected}")
    return tuple(fields)


def _check_types(path: Path, event: str, fields: tuple[FieldFormat, ...]) -> None:
    declared = {field.name: field.type for field in EVENTS[event].fields}
    for name, type_name, code in fields:
        expected = declared.get(name)
        if expected is not None and (type_name, code) != (expected.name, expected.code):
            raise DamageError(
                f"{path}: field {name} is of type {type_name} ({code}), this kvtrace expects {expected.name} "
                f"({expected.code}); the header is damaged or of another kvtrace"
            )


def clock_of(facts: dict[str, Any]) -> Clock | None:
    """The clock reading among some facts; None if there is none, or none that can be right."""
    match facts:
        case {"monotonic_ns": int(monotonic_ns), "realtime_ns": int(realtime_ns)}:
            uncertainty_ns = facts.get("uncertainty_ns", 0)
            if not isinstance(uncertainty_ns, int):
                return None
            clock = Clock(monotonic_ns, realtime_ns, uncertainty_ns)
            return clock if all(0 <= value < LARGEST_CLOCK_NS for value in clock) else None
    return None
