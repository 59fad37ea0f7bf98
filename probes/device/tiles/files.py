"""The tile files of a process: chunks appended with plain writes, so that a killed process loses at most the last."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.format.segment_file import clock_pair
from kvtrace.format.tile_file import FILE_BYTES, FILE_HEADER, FILE_HEADER_BYTES, TILES_MAGIC, TILES_VERSION, file_name

_UNLIMITED = 1 << 62


class File(ctypes.Structure):
    """The open file, to which compiled code writes; `kvtrace/capture/native/tile_drain.c` describes it.

    Fields:
        descriptor: Of it.
        failed: Nothing is written any more.
        bytes: Of it, whole chunks.
        most_bytes: From so many on the next chunk needs another file; 0: there is none.
        allowed_bytes: May be written before more are asked for.
        written_bytes: To all files.
    """

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("descriptor", "failed", "bytes", "most_bytes", "allowed_bytes", "written_bytes")
    ]


class TileFiles:
    """Opens files in a recorder's directory; after the first failure it only says so.

    Attributes:
        file: The open one.
        ends_ns: When no chunk is to go into it any more, by CLOCK_MONOTONIC; 0: its size decides.
        failed: Why nothing is written any more.
    """

    def __init__(self, recorder: Recorder, facts: dict[str, Any]) -> None:
        self._recorder = recorder
        self._facts = facts
        self._sequence = 0
        self._file_bytes = min(FILE_BYTES, recorder.limits.file_bytes)
        # Taken at once beside what is asked for: to take the allowance of all processes is Python's work.
        self._ahead_bytes = _UNLIMITED if recorder.limits.stop_bytes is None else recorder.limits.segment_bytes
        self.file = File(descriptor=-1)
        self.ends_ns = 0
        self.failed: str | None = None

    def make_room(self, chunk_bytes: int) -> None:
        """Allow a chunk, and open a file for it where that is needed."""
        try:
            if chunk_bytes > self.file.allowed_bytes:
                self._allow(chunk_bytes - self.file.allowed_bytes)
            if self.file.bytes >= self.file.most_bytes:
                self._next_file()
        except OSError as error:
            self.fail(error)

    def end_by_clock(self) -> None:
        """Have the next chunk go into another file, if this one's time is over."""
        if 0 < self.ends_ns <= time.monotonic_ns():
            self.ends_ns = self.file.most_bytes = 0

    def close(self) -> None:
        """Close the file."""
        if self.file.descriptor >= 0:
            os.close(self.file.descriptor)
            self.file.descriptor, self.file.most_bytes = -1, 0

    def fail(self, error: OSError) -> None:
        """Take back what is no whole chunk; what comes later is dropped and counted."""
        self.failed = str(error)
        self.file.failed = True
        if self.file.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self.file.descriptor, self.file.bytes)
        self._recorder.note("device", state="stopped", detail=f"cannot write tiles: {error}")

    def _allow(self, size: int) -> None:
        try:
            self._recorder.budget.take(size + self._ahead_bytes)
            size += self._ahead_bytes
        except OSError:  # there is not so much left
            self._recorder.budget.take(size)
        self.file.allowed_bytes += size

    def _next_file(self) -> None:
        self.close()
        self._recorder.open()
        path = self._recorder.directory / file_name(self._sequence)
        self.file.bytes = 0  # nothing of the file before is taken back if the header does not fit
        self.file.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        facts = json.dumps({"pid": os.getpid(), "sequence": self._sequence, **self._facts, **clock_pair()}).encode()
        header = FILE_HEADER.pack(TILES_MAGIC, TILES_VERSION, len(facts)) + facts
        self._sequence += 1
        if (period_ns := self._recorder.limits.segment_ns) is not None:
            self.ends_ns = time.monotonic_ns() + period_ns
        self._write(header.ljust(FILE_HEADER_BYTES, b"\0"))
        self.file.bytes, self.file.most_bytes = FILE_HEADER_BYTES, self._file_bytes
        self.file.written_bytes += FILE_HEADER_BYTES

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.file.descriptor, view) :]
