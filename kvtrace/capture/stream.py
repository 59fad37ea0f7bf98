"""One event's records in this process: packed into mapped segment files, one after the other."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

from kvtrace.capture.budget import Budget
from kvtrace.errors import KvtraceError
from kvtrace.events import Event
from kvtrace.format import layout
from kvtrace.format.segment_file import allocate, clock_pair, seal, segment_header, store

try:
    from kvtrace.capture._native import Packer, fence, write_line
except ImportError as error:
    raise KvtraceError(
        f"kvtrace's compiled part cannot be loaded from {Path(__file__).parent} ({error}), so nothing can be recorded. "
        "Install kvtrace again, from a wheel or where there are a C compiler and Python's headers"
    ) from error

__all__ = ["Emit", "EmitColumns", "Packer", "Stream", "fence", "write_line"]

Emit = Callable[..., None]
"""Appends one record: the event's field values, by name or in declared order."""

EmitColumns = Callable[..., None]
"""Appends records: how many, then for each field, by name or in declared order, a value for all or a list of values."""

FIRST_SEGMENT_BYTES = 1 << 18
SMALLEST_SEGMENT_BYTES = 1 << 14
"""Of a stream that wrote little before its segments were rotated."""


class Process(Protocol):
    """A process's part of a recording, as its streams see it: `kvtrace.capture.recorder.Recorder`."""

    lock: RLock
    budget: Budget
    directory: Path
    counters: mmap.mmap | None
    stopped: str | None
    count_writes: bool
    largest_segment_bytes: int

    def open(self) -> None:
        """Create the process's directory."""

    def stop(self, reason: str) -> None:
        """End recording in this process."""

    def note(self, kind: str, *, inherited: bool = False, opens: bool = False, **facts: Any) -> None:
        """Write a rare fact to the journal."""


class Stream:
    """One event's segments in this process.

    Attributes:
        packer: Appends records; hooks in C are given it.
        emit: Appends one record.
        columns: Appends many records at once: 256 of them take a tenth of the time of one by one.
    """

    def __init__(self, recorder: Process, event: Event, index: int) -> None:
        self.recorder = recorder
        self.event = event
        self.counters_offset = layout.COUNTERS_HEADER_BYTES + index * layout.COUNTERS_ENTRY.size
        self.segment: mmap.mmap | None = None
        self.packer = Packer(event.layout, self, self.count if recorder.count_writes else None)
        self.emit: Emit = self.packer.emit
        self.columns: EmitColumns = self.packer.columns
        self.reset()

    def reset(self) -> None:
        """Forget the open segment, as after a fork: the parent goes on with it."""
        self.use(None)
        self.sequence = 0
        self.segment_bytes = 0
        self.appended_to = 0
        self.rotation_due = False
        self.dropped = 0
        self.written = 0

    def use(self, segment: mmap.mmap | None) -> int:
        """Go on in a segment; where the records end in the one before."""
        end = self.packer.follow(segment, layout.SEGMENT_HEADER_BYTES)
        self.segment = segment  # after that: who finds the one before full must see that this is not it
        return end

    def count(self) -> None:
        """One more record was written, where they are counted."""
        if self.recorder.count_writes and not self.recorder.stopped:
            self.written += 1
            self._store_counters()

    def emit_in_next(self, full: mmap.mmap | None, values: tuple[Any, ...]) -> None:
        """Append a record, for which there is no room in this segment, to the next one."""
        if self._roll(full):
            self.emit(*values)
        else:
            self.drop(1)

    def refuse(self, compiled: str = "") -> None:
        """Count a record as dropped: the compiled part has another declaration of the event.

        Args:
            compiled: That declaration, said once before any record; else empty.
        """
        if not compiled:
            self.recorder.open()
            self.drop(1)
            return
        pairs = zip_longest(compiled.split(), self.event.layout.split(), fillvalue="nothing")
        number, (theirs, ours) = next((at, pair) for at, pair in enumerate(pairs, 1) if pair[0] != pair[1])
        detail = (
            f"kvtrace's compiled part has {theirs} as field {number}, kvtrace.events declares {ours}; "
            f"install kvtrace again; lost: {self.event.name}"
        )
        place = f"kvtrace.events:{self.event.name}"
        self.recorder.note("hook", inherited=True, hook=place, state="disabled", detail=detail)

    def _roll(self, full: mmap.mmap | None, used: int | None = None) -> bool:
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
        """Go on in a new segment if this one has records. Threads that emit meanwhile are not held up."""
        recorder = self.recorder
        with recorder.lock:
            old = self.segment
            if recorder.stopped or old is None or not (used := self._used_bytes(old)):
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

    def _used_bytes(self, segment: mmap.mmap) -> int:
        """About how much of a segment holds records, by halving: records are whole in order but for the last few."""
        size = self.event.struct.size
        low, high = 0, (len(segment) - layout.SEGMENT_HEADER_BYTES) // size
        while low < high:
            middle = (low + high) // 2
            if segment[layout.SEGMENT_HEADER_BYTES + (middle + 1) * size - 1]:
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

    def _next_segment(self, used: int | None) -> mmap.mmap:
        recorder = self.recorder
        size = self._size_of_next(used)
        recorder.budget.take(size)
        path = recorder.directory / layout.segment_name(self.event.name, self.sequence)
        header = segment_header(self.event, os.getpid(), self.sequence, size, clock_pair())
        map_ = allocate(path, size)
        start = len(layout.SEGMENT_MAGIC)
        map_[start : len(header)] = header[start:]
        fence()
        map_[:start] = header[:start]
        self.sequence += 1
        self.segment_bytes = size
        return map_

    def append(self, rows: Any) -> None:
        """Append whole records made elsewhere: a contiguous array of bytes, a row a record.

        Only for streams that nothing is emitted to, from one thread: reserving a run of places is not atomic.
        """
        size = self.event.struct.size
        done = 0
        while done < len(rows):
            segment = self.segment
            room = 0 if segment is None else (len(segment) - self.appended_to) // size
            if segment is None or not room or self.rotation_due:
                end = self.appended_to
                used, self.rotation_due = (end if self.rotation_due else None), False
                if not self._roll(segment, used):
                    self.drop(len(rows) - done)
                    return
                if used is not None and segment is not None:
                    seal(segment, end)
                self.appended_to = layout.SEGMENT_HEADER_BYTES
                continue
            part = rows[done : done + room]
            start, end = self.appended_to, self.appended_to + len(part) * size
            segment[start:end] = part.tobytes()
            fence()
            segment[start + size - 1 : end : size] = b"\1" * len(part)  # last: they count once this is written
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
