"""The tile files of a process: chunks appended with plain writes, so that a killed process loses at most the last."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.format.segment_file import clock_pair
from kvtrace.format.tile_file import (
    CHUNK,
    FILE_BYTES,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    TILES_MAGIC,
    TILES_VERSION,
    Chunk,
    file_name,
)


class TileFiles:
    """Appends chunks to a recorder's directory; after the first failure it only says so."""

    def __init__(self, recorder: Recorder, facts: dict[str, Any]) -> None:
        self._recorder = recorder
        self._facts = facts
        self._descriptor = -1
        self._sequence = 0
        self._size = 0
        self._chunk_start = 0
        self._file_bytes = min(FILE_BYTES, recorder.limits.file_bytes)
        self._ends_ns = 0
        self.bytes_written = 0
        self.failed: str | None = None

    def begin(self, chunk: Chunk) -> None:
        """Start a chunk."""
        if self.failed:
            return
        self._chunk_start = self._size  # whatever fails, the chunks before stay
        try:
            self._recorder.budget.take(CHUNK.size + chunk.payload_bytes)
            if self._descriptor < 0 or self._size >= self._file_bytes or 0 < self._ends_ns <= time.monotonic_ns():
                self._next_file()
        except OSError as error:
            self._fail(error)
            return
        self._chunk_start = self._size
        self.write(CHUNK.pack(*chunk))

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the chunk."""
        if self.failed:
            return
        view = memoryview(data).cast("B")
        try:
            while view:
                written = os.write(self._descriptor, view)
                self._size += written
                self.bytes_written += written
                view = view[written:]
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _next_file(self) -> None:
        self.close()
        self._recorder.open()
        path = self._recorder.directory / file_name(self._sequence)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        facts = json.dumps({"pid": os.getpid(), "sequence": self._sequence, **self._facts, **clock_pair()}).encode()
        header = FILE_HEADER.pack(TILES_MAGIC, TILES_VERSION, len(facts)) + facts
        self._sequence += 1
        self._size = self._chunk_start = 0  # nothing of the file before is taken back if the header does not fit
        if (period_ns := self._recorder.limits.segment_ns) is not None:
            self._ends_ns = time.monotonic_ns() + period_ns
        self.write(header.ljust(FILE_HEADER_BYTES, b"\0"))

    def _fail(self, error: OSError) -> None:
        """Take the unfinished chunk back; what comes later is dropped and counted."""
        self.failed = str(error)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._chunk_start)
        self._recorder.note("device", state="stopped", detail=f"cannot write tiles: {error}")
