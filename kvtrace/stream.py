"""One event's records in this process: packed into mapped segment files, one after the other."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvtrace import layout
from kvtrace.events import Event
from kvtrace.mapped import NO_SEGMENT, MappedSegment, NoSegment, allocate, clock_pair, seal, segment_header, store

if TYPE_CHECKING:
    from kvtrace.capture import Recorder

Emit = Callable[..., None]
"""Appends one record: the event's field values in declared order."""

EmitRows = Callable[[list[Any], int], None]
"""Appends records: their field values one after another, each record's followed by 1; how many records."""

ROWS_A_PACK = 16
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


class Stream:
    """One event's segments in this process."""

    def __init__(self, recorder: Recorder, event: Event, index: int) -> None:
        self.recorder = recorder
        self.event = event
        self.counters_offset = layout.COUNTERS_HEADER_BYTES + index * layout.COUNTERS_ENTRY.size
        self.emit = self._counting_emit() if recorder.count_writes else self._emit()
        self.reset()

    def reset(self) -> None:
        """Forget the open segment, as after a fork: the parent goes on with it."""
        self.segment: MappedSegment | NoSegment = NO_SEGMENT
        self.sequence = 0
        self.segment_bytes = 0
        self.appended_to = 0
        self.rotation_due = False
        self.dropped = 0
        self.written = 0

    def _emit(self) -> Emit:
        emit: Emit = _emitter(len(self.event.fields))(self, self.event.struct.pack_into)
        return emit

    def emit_rows(self) -> EmitRows:
        """The function that appends records in packs, at half the cost of one by one."""
        layout_, size, width = self.event.struct.format[1:], self.event.struct.size, len(self.event.fields) + 1
        packs = [struct.Struct("<" + layout_ * rows).pack_into for rows in range(ROWS_A_PACK + 1)]

        def emit_rows(values: list[Any], rows: int) -> None:
            segment = self.segment
            last = deque(islice(segment.offsets, rows), 1)[0]  # one C call: no other thread reserves in between
            offset = last - (rows - 1) * size
            if last > segment.last or self.recorder.count_writes:
                self._emit_rows_singly(segment, offset, values, rows)
                return
            for first in range(0, rows, ROWS_A_PACK):
                part = values[first * width : (first + ROWS_A_PACK) * width]
                packs[len(part) // width](segment.map, offset + first * size, *part)

        return emit_rows

    def _emit_rows_singly(self, segment: MappedSegment | NoSegment, offset: int, values: list[Any], rows: int) -> None:
        """Fill what was reserved at the end of a segment, then go on in the next."""
        width, size = len(self.event.fields) + 1, self.event.struct.size
        for row in range(rows):
            part = values[row * width : (row + 1) * width]
            place = offset + row * size
            if place <= segment.last:
                self.event.struct.pack_into(segment.map, place, *part)
                self._count()
            else:
                self.emit(*part[:-1])

    def _counting_emit(self) -> Emit:
        """Emit and count, for the tests that ask whether a crash lost anything."""
        emit = self._emit()

        def counting(*values: Any) -> None:
            emit(*values)
            self._count()

        return counting

    def _count(self) -> None:
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
                        self.segment = self._next_segment(used)
                except (OSError, ValueError) as error:
                    recorder.stop(f"no new segment for {self.event.name}: {error}")
            return not recorder.stopped

    def rotate(self) -> None:
        """Go on in a new segment if this one has records. Threads that emit meanwhile are not held up.

        One of them may have looked up the old segment already; its records come to lie behind the seal.
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
                self.segment = self._next_segment(used)
            except OSError as error:
                recorder.stop(f"no new segment for {self.event.name}: {error}")
                return
            seal(old, old.next_offset())

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
            segment.map[start:end] = part.tobytes()  # not whole yet: the last byte of each row is 0
            segment.map[start + size - 1 : end : size] = b"\1" * len(part)
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
