"""The capture log's writing side: what runs inside vLLM's processes.

Records are packed straight into memory-mapped, pre-allocated segment files, so whatever was written before a `kill -9`
is there afterwards, and no thread, lock or system call is on the common path. A record's last byte is set after all
others; a record without it is torn. A disk that cannot give another segment stops the recording, never the engine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from kvtrace import __version__, layout
from kvtrace.budget import Budget
from kvtrace.events import EVENTS, SCHEMA_VERSION, Event
from kvtrace.limits import Limits
from kvtrace.rotation import Rotation

Emit = Callable[..., None]
"""Appends one record: the event's field values in declared order."""

EmitRows = Callable[[list[Any], int], None]
"""Appends records: their field values one after another, each record's followed by 1; how many records."""

_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

ROWS_A_PACK = 16
FIRST_SEGMENT_BYTES = 1 << 18
SMALLEST_SEGMENT_BYTES = 1 << 14
"""Of a stream that wrote little before its segments were rotated."""


def clock_pair() -> dict[str, int]:
    """Read both clocks at (nearly) the same moment: the realtime reading lies between two monotonic ones."""
    before = time.monotonic_ns()
    realtime = time.time_ns()
    after = time.monotonic_ns()
    return {"realtime_ns": realtime, "monotonic_ns": (before + after) // 2, "uncertainty_ns": (after - before + 1) // 2}


def segment_header(event: Event, pid: int, sequence: int, segment_bytes: int, clock: dict[str, int]) -> bytes:
    """The first `SEGMENT_HEADER_BYTES` of a segment; the magic must reach the file last."""
    facts = json.dumps(
        {
            "event": event.name,
            "schema_version": SCHEMA_VERSION,
            "fields": [[field.name, field.type.name, field.type.code] for field in event.fields],
            "pid": pid,
            "sequence": sequence,
            "segment_bytes": segment_bytes,
            **clock,
        }
    ).encode()
    head = layout.SEGMENT_HEADER.pack(layout.SEGMENT_MAGIC, layout.FORMAT_VERSION, event.struct.size, len(facts))
    return (head + facts).ljust(layout.SEGMENT_HEADER_BYTES, b"\0")


class _Segment:
    """A mapped segment: `next_offset()` reserves a record's place; one beyond `last` means it is full."""

    __slots__ = ("last", "map", "next_offset", "offsets")

    def __init__(self, map_: mmap.mmap, record_bytes: int) -> None:
        self.map = map_
        self.last = len(map_) - record_bytes
        self.offsets = itertools.count(layout.SEGMENT_HEADER_BYTES, record_bytes)
        self.next_offset = self.offsets.__next__


class _NoSegment:
    """Stands where no segment is open: always full."""

    map: Any = None
    last = -(1 << 62)
    offsets = itertools.repeat(0)

    @staticmethod
    def next_offset() -> int:
        return 0


_NO_SEGMENT = _NoSegment()


class _Stream:
    """One event's segments in this process."""

    def __init__(self, recorder: Recorder, event: Event, index: int) -> None:
        self.recorder = recorder
        self.event = event
        self.counters_offset = layout.COUNTERS_HEADER_BYTES + index * layout.COUNTERS_ENTRY.size
        self.emit = self._counting_emit() if recorder.count_writes else self._emit()
        self.reset()

    def reset(self) -> None:
        """Forget the open segment, as after a fork: the parent goes on with it."""
        self.segment: _Segment | _NoSegment = _NO_SEGMENT
        self.sequence = 0
        self.segment_bytes = 0
        self.appended_to = 0
        self.rotation_due = False
        self.dropped = 0
        self.written = 0

    def _emit(self) -> Emit:
        pack_into = self.event.struct.pack_into

        def emit(*values: Any) -> None:
            segment = self.segment
            offset = segment.next_offset()
            if offset > segment.last:
                self._emit_in_next(segment, values)
                return
            pack_into(segment.map, offset, *values, 1)

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

    def _emit_rows_singly(self, segment: _Segment | _NoSegment, offset: int, values: list[Any], rows: int) -> None:
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

    def _emit_in_next(self, full: _Segment | _NoSegment, values: tuple[Any, ...]) -> None:
        if self._roll(full):
            self._emit()(*values)
        else:
            self.drop(1)

    def _roll(self, full: _Segment | _NoSegment, used: int | None = None) -> bool:
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
            if recorder.stopped or isinstance(old, _NoSegment) or not (used := self._used_bytes(old)):
                return
            if self.appended_to:
                self.rotation_due = True
                return
            try:
                self.segment = self._next_segment(used)
            except OSError as error:
                recorder.stop(f"no new segment for {self.event.name}: {error}")
                return
            _seal(old, old.next_offset())

    def _used_bytes(self, segment: _Segment) -> int:
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

    def _next_segment(self, used: int | None = None) -> _Segment:
        recorder = self.recorder
        size = self._size_of_next(used)
        recorder.budget.take(size)
        path = recorder.directory / layout.segment_name(self.event.name, self.sequence)
        header = segment_header(self.event, os.getpid(), self.sequence, size, clock_pair())
        map_ = _allocate(path, size)
        start = len(layout.SEGMENT_MAGIC)
        map_[start : len(header)] = header[start:]
        map_[:start] = header[:start]
        self.sequence += 1
        self.segment_bytes = size
        return _Segment(map_, self.event.struct.size)

    def append(self, rows: Any) -> None:
        """Append whole records made elsewhere: a contiguous array of bytes, a row a record.

        Only for streams that nothing is emitted to, from one thread: reserving a run of places is not atomic.
        """
        size = self.event.struct.size
        done = 0
        while done < len(rows):
            segment = self.segment
            room = 0 if segment is _NO_SEGMENT else (len(segment.map) - self.appended_to) // size
            if not room or self.rotation_due:
                end = self.appended_to
                used, self.rotation_due = (end if self.rotation_due else None), False
                if not self._roll(segment, used):
                    self.drop(len(rows) - done)
                    return
                if used is not None:
                    _seal(segment, end)
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
            _store(counters, self.counters_offset, layout.COUNTERS_ENTRY.pack(self.dropped, self.written))


def _store(map_: mmap.mmap, offset: int, data: bytes) -> None:
    """Replace what a few bytes hold. `pack_into` would empty them first, and a `kill -9` might come in between."""
    map_[offset : offset + len(data)] = data


def _seal(segment: _Segment | _NoSegment, end: int) -> None:
    layout.SEGMENT_SEAL.pack_into(segment.map, layout.SEGMENT_SEAL_OFFSET, end)


def _allocate(path: Path, size: int) -> mmap.mmap:
    """Create and map a file whose blocks are all allocated: a full disk is an OSError here, not a SIGBUS later."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            os.posix_fallocate(descriptor, 0, size)
            return mmap.mmap(descriptor, size)
        except (OSError, ValueError):
            os.unlink(path)
            raise
    finally:
        os.close(descriptor)


class Recorder:
    """This process's part of a recording.

    Nothing is created until the process has something to say, so helper processes leave no trace. A forked child
    records on its own, in a directory of its own.

    Args:
        run_dir: The run directory; it must exist.
        limits: How much may be written, and when segments end.
        largest_segment_bytes: Segments grow up to this size; that of the limits unless given.
        count_writes: Keep a count of written records beside them (tests only: it costs time).
    """

    def __init__(
        self,
        run_dir: Path,
        limits: Limits | None = None,
        *,
        largest_segment_bytes: int | None = None,
        count_writes: bool = False,
    ) -> None:
        self.run_dir = run_dir
        self.limits = limits or Limits()
        self.largest_segment_bytes = largest_segment_bytes or self.limits.segment_bytes
        self.budget = Budget(run_dir, self.limits.stop_bytes)
        self.count_writes = count_writes
        self._streams = [_Stream(self, event, index) for index, event in enumerate(EVENTS.values())]
        self._by_name = {stream.event.name: stream for stream in self._streams}
        self._notes_before_fork: list[dict[str, Any]] = []
        self._reset()
        os.register_at_fork(after_in_child=self._after_fork)

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._clock_offset_ns = time.time_ns() - time.monotonic_ns()
        self.stopped: str | None = None
        self.directory = self.run_dir
        self.counters: mmap.mmap | None = None
        self._journal = -1
        self._string_file = -1
        self._string_sequence = 0
        self._interned = 0
        self._strings: dict[str, int] = {}
        self._next_string = itertools.count(1).__next__
        self._pending: list[dict[str, Any]] = []

    def _after_fork(self) -> None:
        for descriptor in (self._journal, self._string_file):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._reset()
        for stream in self._streams:
            stream.reset()
        self._pending.extend(self._notes_before_fork)

    def stream(self, event: Event) -> Emit:
        """The function that appends a record of `event`. It never raises for lack of space."""
        return self._by_name[event.name].emit

    def rows_stream(self, event: Event) -> EmitRows:
        """The function that appends many records of `event` at once."""
        return self._by_name[event.name].emit_rows()

    def append(self, event: Event, rows: Any) -> None:
        """Append records made elsewhere, such as on a GPU: a contiguous array of bytes, a row a record, commit byte 0.

        For an event that is only ever appended, from one thread.
        """
        self._by_name[event.name].append(rows)

    def drop(self, event: Event, records: int) -> None:
        """Count records of an event that were lost before they came here."""
        self.open()
        self._by_name[event.name].drop(records)

    def intern(self, text: str) -> int:
        """A small number for a string, the same for as long as the string is not forgotten; 0 for an empty one."""
        number = self._strings.get(text)
        if number is not None:
            return number
        return self._intern_new(text)

    def _intern_new(self, text: str) -> int:
        if not text:
            return 0
        with self.lock:
            self.open()
            if self.stopped:
                return 0
            number = self._strings.get(text)
            if number is None:
                number = self._next_string()
                self._append(self._string_file, [number, text])
                self._strings[text] = number
                self._interned += 1
            return number

    def clock_moved_ns(self) -> int:
        """How far the realtime clock was stepped since this process was ready to record; slewing is in it, too."""
        return time.time_ns() - time.monotonic_ns() - self._clock_offset_ns

    def forget(self, text: str) -> None:
        """Drop a string that will not come again (a finished request's id), so that memory stays flat."""
        self._strings.pop(text, None)

    def rotate(self) -> None:
        """Begin new segments where there are records, and a new file of strings where old ones may be let go."""
        for stream in self._streams:
            stream.rotate()
        if self.limits.keeps:
            self._rotate_strings()

    def _rotate_strings(self) -> None:
        """Go on in a new file that begins with all strings that may still be used."""
        with self.lock:
            if self.stopped or self.directory is self.run_dir or not self._interned:
                return
            begins = {"monotonic_ns": clock_pair()["monotonic_ns"]}
            lines = (begins, *([number, text] for text, number in self._strings.items()))
            path = self.directory / layout.strings_name(self._string_sequence + 1)
            try:
                descriptor = os.open(path, _APPENDING, 0o644)
                data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
                if os.write(descriptor, data) != len(data):
                    raise OSError("the disk is full")
            except OSError as error:
                self.stop(f"cannot write {path}: {error}")
                return
            os.close(self._string_file)
            self._string_file = descriptor
            self._string_sequence += 1
            self._interned = 0

    def note(self, kind: str, *, inherited: bool = False, opens: bool = False, **facts: Any) -> None:
        """Write a rare fact to the journal.

        It is kept back until the process has recorded an event or a role (`opens`), so that helper processes leave no
        trace. With `inherited` forked children repeat it.
        """
        line = {"kind": kind, "monotonic_ns": time.monotonic_ns(), **facts}
        with self.lock:
            if inherited:
                self._notes_before_fork.append(line)
            if self.directory is self.run_dir:
                self._pending.append(line)
            elif not self.stopped:
                self._append(self._journal, line)
            if opens:
                self.open()

    def open(self) -> None:
        """Create the process's directory and write what was kept back. Does nothing the second time."""
        with self.lock:
            if self.directory is not self.run_dir or self.stopped:
                return
            try:
                self._open()
            except (OSError, ValueError) as error:
                self.stop(f"cannot record in {self.run_dir}: {error}")
                return
            pending, self._pending = self._pending, []
            for line in pending:
                self._append(self._journal, line)

    def _open(self) -> None:
        host, pid, clock = socket.gethostname(), os.getpid(), clock_pair()
        directory = self.run_dir / layout.PROCESSES / f"{host}-{pid}-{clock['monotonic_ns']}"
        directory.mkdir(parents=True)
        counters = _allocate(directory / layout.COUNTERS, layout.COUNTERS_BYTES)
        layout.COUNTERS_HEADER.pack_into(counters, 0, layout.COUNTERS_MAGIC, layout.FORMAT_VERSION, 0)
        self.counters = counters
        self._journal = os.open(directory / layout.JOURNAL, _APPENDING, 0o644)
        self._string_file = os.open(directory / layout.STRINGS, _APPENDING, 0o644)
        self.directory = directory
        self._append(
            self._journal,
            {
                "kind": "process",
                "format_version": layout.FORMAT_VERSION,
                "kvtrace": __version__,
                "python": sys.version.split()[0],
                "host": host,
                "boot_id": _boot_id(),
                "pid": pid,
                "ppid": os.getppid(),
                "streams": list(EVENTS),
                **clock,
            },
        )
        if self.limits.segment_ns is not None:
            Rotation(self, self.limits.segment_ns).start()

    def stop(self, reason: str) -> None:
        """End recording in this process for good: from here on records are counted as dropped."""
        with self.lock:
            if self.stopped:
                return
            self.stopped = reason
            for stream in self._streams:
                stream.segment = _NO_SEGMENT
            if self.counters is not None:
                _store(self.counters, 0, layout.COUNTERS_HEADER.pack(layout.COUNTERS_MAGIC, layout.FORMAT_VERSION, 1))
            line = {"kind": "stopped", "reason": reason, **clock_pair()}
            with contextlib.suppress(OSError):
                os.write(self._journal, json.dumps(line).encode() + b"\n")
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                sys.stderr.write(f"kvtrace: recording stopped in process {os.getpid()}: {reason}\n")

    def _append(self, descriptor: int, line: object) -> None:
        data = json.dumps(line, default=str).encode() + b"\n"
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError("the disk is full")
        except OSError as error:
            self.stop(f"cannot write the journal: {error}")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
