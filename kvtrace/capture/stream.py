"""One event's records in this process: packed into mapped segment files, one after the other."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvtrace.events import Event
from kvtrace.format import layout
from kvtrace.format.segment_file import (
    NO_SEGMENT,
    MappedSegment,
    NoSegment,
    allocate,
    clock_pair,
    seal,
    segment_header,
    store,
)

if TYPE_CHECKING:
    from kvtrace.capture._native import Packer
    from kvtrace.capture.recorder import Recorder

Emit = Callable[..., None]
"""Appends one record: the event's field values in declared order."""

EmitColumns = Callable[..., None]
"""Appends records: how many, then for each field, in declared order, one value for all of them or a list of values."""

NATIVE_VARIABLE = "KVTRACE_NATIVE"
"""0: do without the compiled part."""

FEW_ROWS = 6
"""So many records are appended quicker one by one."""

FIRST_SEGMENT_BYTES = 1 << 18
SMALLEST_SEGMENT_BYTES = 1 << 14
"""Of a stream that wrote little before its segments were rotated."""


_EMIT = """
def bind(stream, pack_into):
    def emit({values}):
        segment = stream.segment
        offset = segment.next_offset()
        if offset > segment.last:
            stream._emit_in_next(segment, ({values},))
            return
        pack_into(segment.map, offset, {values}, 1)
    return emit
"""
"""Compiled for each number of values: passing them on as `*values` takes half as long again for every record."""


@cache
def _emitter(values: int) -> Any:
    found: dict[str, Any] = {}
    exec(_EMIT.format(values=", ".join(f"v{index}" for index in range(values))), found)
    return found["bind"]


def compiled() -> Any:
    """`kvtrace.capture._native`, or None: it was not built, or is not wanted."""
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return None
    try:
        return import_module("kvtrace.capture._native")
    except ImportError:
        return None


class Stream:
    """One event's segments in this process."""

    def __init__(self, recorder: Recorder, event: Event, index: int) -> None:
        self.recorder = recorder
        self.event = event
        self.counters_offset = layout.COUNTERS_HEADER_BYTES + index * layout.COUNTERS_ENTRY.size
        self.segment: MappedSegment | NoSegment = NO_SEGMENT
        self.packer = self._packer()
        self.emit = self._counting_emit() if recorder.count_writes and self.packer is None else self._emit()
        self.reset()

    def reset(self) -> None:
        """Forget the open segment, as after a fork: the parent goes on with it."""
        self.use(NO_SEGMENT)
        self.sequence = 0
        self.segment_bytes = 0
        self.appended_to = 0
        self.rotation_due = False
        self.dropped = 0
        self.written = 0

    def use(self, segment: MappedSegment | NoSegment) -> int:
        """Go on in a segment; where the places end that were given out in the one before."""
        before = self.segment
        if self.packer is not None:  # first: who finds the one before full must see that this is not it
            end = self.packer.follow(segment.map, layout.SEGMENT_HEADER_BYTES)
        self.segment = segment
        return before.next_offset() if self.packer is None else end

    def _packer(self) -> Packer | None:
        """Return the compiled counterpart of this stream, if there is one."""
        native = compiled()
        if native is None:
            return None
        wrote = self.count if self.recorder.count_writes else None
        packer: Packer = native.Packer(self.event.struct.format, self, wrote)
        return packer

    def _emit(self) -> Emit:
        if self.packer is not None:
            return self.packer.emit
        emit: Emit = _emitter(len(self.event.fields))(self, self.event.struct.pack_into)
        return emit

    def columns(self) -> EmitColumns:
        """The function that appends many records at once: 256 of them take a tenth of the time of one by one."""
        if self.packer is not None:
            return self.packer.columns
        pack, places = self.event.struct.pack, [str(index) for index in range(len(self.event.fields))]
        as_rows: Callable[[bytearray], Any] | None = None

        def emit_columns(rows: int, *values: Any) -> None:
            nonlocal as_rows
            if rows < FEW_ROWS:
                for index in range(rows):
                    self.emit(*[value[index] if isinstance(value, list) else value for value in values])
                return
            as_rows = as_rows or self._as_rows(places)
            data = bytearray(pack(*[0 if isinstance(value, list) else value for value in values], 0) * rows)
            table = as_rows(data)
            for place, value in zip(places, values, strict=True):
                if isinstance(value, list):
                    table[place] = value
            self._write(data, rows)

        return emit_columns

    def _as_rows(self, places: list[str]) -> Callable[[bytearray], Any]:
        import numpy  # an engine has loaded it by now; `kvtrace record` itself does without

        codes = [field.type.code for field in self.event.fields]
        return partial(numpy.frombuffer, dtype=numpy.dtype([*zip(places, codes, strict=True), ("whole", "B")]))

    def _write(self, data: bytearray, rows: int) -> None:
        """Append records whose commit bytes are 0."""
        segment, size = self.segment, self.event.struct.size
        last = deque(islice(segment.offsets, rows), 1)[0]  # one C call: no other thread reserves in between
        offset = last - (rows - 1) * size
        if last > segment.last or self.recorder.count_writes:
            self._write_singly(segment, offset, data)
            return
        self._store(segment, offset, data, rows)

    def _store(self, segment: MappedSegment | NoSegment, offset: int, data: bytes | bytearray, rows: int) -> None:
        """Put records into reserved places; none is whole before the last step, for their commit bytes are 0."""
        size, end = self.event.struct.size, offset + len(data)
        segment.map[offset:end] = data
        segment.map[offset + size - 1 : end : size] = b"\1" * rows

    def _write_singly(self, segment: MappedSegment | NoSegment, offset: int, data: bytearray) -> None:
        """Fill what was reserved at the end of a segment, then go on in the next."""
        for *values, _ in self.event.struct.iter_unpack(data):
            if offset <= segment.last:
                self.event.struct.pack_into(segment.map, offset, *values, 1)
                self.count()
            else:
                self.emit(*values)
            offset += self.event.struct.size

    def _counting_emit(self) -> Emit:
        """Emit and count, for the tests that ask whether a crash lost anything."""
        emit = self._emit()

        def counting(*values: Any) -> None:
            emit(*values)
            self.count()

        return counting

    def count(self) -> None:
        """One more record was written, where they are counted."""
        if self.recorder.count_writes and not self.recorder.stopped:
            self.written += 1
            self._store_counters()

    def _emit_in_next(self, full: MappedSegment | NoSegment, values: tuple[Any, ...]) -> None:
        if self._roll(full):
            self._emit()(*values)
        else:
            self.drop(1)

    def _roll(self, full: MappedSegment | NoSegment, used: int | None = None) -> bool:
        """Open the next segment unless another thread did; False once recording has stopped."""
        recorder = self.recorder
        with recorder.lock:
            if not recorder.stopped and self.segment is full:
                try:
                    recorder.open()
                    if not recorder.stopped:
                        self.use(self._next_segment(used))
                except (OSError, ValueError) as error:
                    recorder.stop(f"no new segment for {self.event.name}: {error}")
            return not recorder.stopped

    def rotate(self) -> None:
        """Go on in a new segment if this one has records. Threads that emit meanwhile are not held up.

        Without compiled code, one of them may have looked up the old segment already; its records come to lie behind
        the seal.
        """
        recorder = self.recorder
        with recorder.lock:
            old = self.segment
            if recorder.stopped or isinstance(old, NoSegment) or not (used := self._used_bytes(old)):
                return
            if self.appended_to:
                self.rotation_due = True
                return
            try:
                end = self.use(self._next_segment(used))
            except OSError as error:
                recorder.stop(f"no new segment for {self.event.name}: {error}")
                return
            seal(old, end)

    def _used_bytes(self, segment: MappedSegment) -> int:
        """About how much of a segment holds records, by halving: records are whole in order but for the last few."""
        size = self.event.struct.size
        low, high = 0, (len(segment.map) - layout.SEGMENT_HEADER_BYTES) // size
        while low < high:
            middle = (low + high) // 2
            if segment.map[layout.SEGMENT_HEADER_BYTES + (middle + 1) * size - 1]:
                low = middle + 1
            else:
                high = middle
        return low * size

    def _size_of_next(self, used: int | None) -> int:
        """Four times the full one, or twice what the one before took where the clock ends it."""
        if used is None:
            size = 4 * self.segment_bytes or FIRST_SEGMENT_BYTES
        else:
            size = max(SMALLEST_SEGMENT_BYTES, 1 << (2 * used + layout.SEGMENT_HEADER_BYTES - 1).bit_length())
        return min(size, self.recorder.largest_segment_bytes)

    def _next_segment(self, used: int | None = None) -> MappedSegment:
        recorder = self.recorder
        size = self._size_of_next(used)
        recorder.budget.take(size)
        path = recorder.directory / layout.segment_name(self.event.name, self.sequence)
        header = segment_header(self.event, os.getpid(), self.sequence, size, clock_pair())
        map_ = allocate(path, size)
        start = len(layout.SEGMENT_MAGIC)
        map_[start : len(header)] = header[start:]
        map_[:start] = header[:start]
        self.sequence += 1
        self.segment_bytes = size
        return MappedSegment(map_, self.event.struct.size)

    def append(self, rows: Any) -> None:
        """Append whole records made elsewhere: a contiguous array of bytes, a row a record.

        Only for streams that nothing is emitted to, from one thread: reserving a run of places is not atomic.
        """
        size = self.event.struct.size
        done = 0
        while done < len(rows):
            segment = self.segment
            room = 0 if segment is NO_SEGMENT else (len(segment.map) - self.appended_to) // size
            if not room or self.rotation_due:
                end = self.appended_to
                used, self.rotation_due = (end if self.rotation_due else None), False
                if not self._roll(segment, used):
                    self.drop(len(rows) - done)
                    return
                if used is not None:
                    seal(segment, end)
                self.appended_to = layout.SEGMENT_HEADER_BYTES
                continue
            part = rows[done : done + room]
            start, end = self.appended_to, self.appended_to + len(part) * size
            self._store(segment, start, part.tobytes(), len(part))
            self.appended_to = end
            done += len(part)
            if self.recorder.count_writes:
                self.written += len(part)
                self._store_counters()

    def drop(self, records: int) -> None:
        """Count records that are lost."""
        self.dropped += records
        self._store_counters()

    def _store_counters(self) -> None:
        counters = self.recorder.counters
        if counters is not None:
            store(counters, self.counters_offset, layout.COUNTERS_ENTRY.pack(self.dropped, self.written))
