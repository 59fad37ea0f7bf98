"""The capture log's writing side: what runs inside vLLM's processes.

Records are packed straight into memory-mapped, pre-allocated segment files (`stream.py`, `segment_file.py`): whatever
was written before a `kill -9` is there afterwards, and no thread, lock or system call is on the common path. A record's
last byte is set after all others; a record without it is torn. A disk that cannot give another segment stops the
recording, never the engine.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import mmap
import os
import socket
import sys
import threading
import time
import weakref
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from kvtrace import __version__
from kvtrace.capture.budget import Budget
from kvtrace.capture.limits import Limits
from kvtrace.capture.stream import Emit, EmitColumns, Packer, Stream, write_line
from kvtrace.events import EVENTS, Event
from kvtrace.format import layout, machine
from kvtrace.format.segment_file import allocate, clock_pair, store

_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_CLOCKS_APART_NS = 5_000


def _clock_offset_ns() -> int:
    """Return the realtime clock less the monotonic one; the thread may lose its core between two readings."""
    for _ in range(3):
        before, realtime, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < _CLOCKS_APART_NS:
            break
    return realtime - (before + after) // 2


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
        self._streams = [Stream(self, event, index) for index, event in enumerate(EVENTS.values())]
        self._by_name = {stream.event.name: stream for stream in self._streams}
        self._notes_before_fork: list[dict[str, Any]] = []
        self._reset()
        forked = weakref.WeakMethod(self._after_fork)  # a garbage-collected recorder closes its files
        os.register_at_fork(after_in_child=lambda: (alive := forked()) and alive())

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._clock_offset_ns = _clock_offset_ns()
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

    def columns(self, event: Event) -> EmitColumns:
        """The function that appends many records of `event` at once."""
        return self._by_name[event.name].columns

    def packer(self, event: Event) -> Packer:
        """Appends records of `event`: for a hook in C, which fills a record of `native/events.h`."""
        return self._by_name[event.name].packer

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
        (number,) = self._number((text,), remember=True)
        return number

    def intern_once(self, *texts: str) -> list[int]:
        """Numbers for strings that will not come again; nothing is remembered of those that are not known."""
        return self._number(texts, remember=False)

    def _number(self, texts: tuple[str, ...], remember: bool) -> list[int]:
        if not any(texts):
            return [0] * len(texts)
        with self.lock:
            if self.directory is self.run_dir:
                self.open()
            if self.stopped:
                return [0] * len(texts)
            lines, numbers = "", []
            for text in texts:
                number = self._strings.get(text) if text else 0
                if number is None:
                    number = self._next_string()
                    lines += f"[{number}, {encode_basestring_ascii(text)}]\n"
                    if remember:
                        self._strings[text] = number
                    self._interned += 1
                numbers.append(number)
            if lines:
                self._write(self._string_file, lines)
            return numbers

    def clock_moved_ns(self) -> int:
        """Return how far the realtime clock was stepped or slewed since this process was ready to record."""
        return _clock_offset_ns() - self._clock_offset_ns

    def forget(self, text: str) -> None:
        """Drop a string that will not come again (a finished request's id), so that memory stays flat."""
        self._strings.pop(text, None)

    def rotate(self) -> None:
        """Begin new segments where there are records, and a new file of strings where old ones may be discarded."""
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
        counters = allocate(directory / layout.COUNTERS, layout.COUNTERS_BYTES)
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
                "boot_id": machine.boot_id(),
                "pid_namespace": machine.pid_namespace(),
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
                stream.use(None)
            if self.counters is not None:
                store(self.counters, 0, layout.COUNTERS_HEADER.pack(layout.COUNTERS_MAGIC, layout.FORMAT_VERSION, 1))
            line = {"kind": "stopped", "reason": reason, **clock_pair()}
            with contextlib.suppress(OSError):
                os.write(self._journal, json.dumps(line).encode() + b"\n")
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                sys.stderr.write(f"kvtrace: recording stopped in process {os.getpid()}: {reason}\n")

    def _append(self, descriptor: int, line: object) -> None:
        self._write(descriptor, json.dumps(line, default=str) + "\n")

    def _write(self, descriptor: int, lines: str) -> None:
        data = lines.encode()
        try:
            if write_line(descriptor, data) != len(data):
                raise OSError("the disk is full")
        except OSError as error:
            self.stop(f"cannot write the journal: {error}")


class Rotation(threading.Thread):
    """Rotates a recorder's segments, and its strings if old ones may go, until recording or the process ends."""

    def __init__(self, recorder: Recorder, period_ns: int) -> None:
        super().__init__(name="kvtrace-rotation", daemon=True)
        self._recorder = recorder
        self._period_s = period_ns / 1e9
        self._over = threading.Event()
        atexit.register(self.finish)

    def run(self) -> None:
        """Rotate once a period."""
        while not self._over.wait(self._period_s) and not self._recorder.stopped:
            self._recorder.rotate()

    def finish(self) -> None:
        """End, so that the interpreter does not stop a rotation half done."""
        self._over.set()
        self.join(timeout=5)
