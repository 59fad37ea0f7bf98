"""From the ring to the tile files: a thread that follows closed steps and copies them on a stream of its own.

It comes back to Python only where that is needed: when the clock is due, for another file, to end. What it does in
between, without the GIL, is `kvtrace/capture/native/tile_drain.c`.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from kvtrace.capture import _native
from kvtrace.capture.recorder import Recorder
from kvtrace.format.tile_file import CHUNK_MARK
from kvtrace.probes.device.cuda import check, needed_entry
from kvtrace.probes.device.drain_thread import Drain
from kvtrace.probes.device.tiles.files import TileFiles
from kvtrace.probes.device.tiles.layout import SECTIONS
from kvtrace.probes.device.tiles.ring import Ring

STAGING_BYTES = 32 << 20
SAY_SECONDS = 1.0
"""Seconds between two counts of what was recorded, while there is something to record."""

TIME_IS_UP, NEEDS_ROOM, NOT_WRITTEN, CUDA_FAILED = range(4)
"""Why compiled code came back."""

_Sections = ctypes.c_uint64 * len(SECTIONS)


class State(ctypes.Structure):
    """State shared with compiled code; `kvtrace/capture/native/tile_drain.c` describes it.

    Fields:
        copy, synchronize, write: Addresses of cuMemcpyDtoHAsync, cuStreamSynchronize and write.
        stream: The copies'.
        staging, staging_bytes: Pinned memory that they go through.
        steps, slots, published, released, memory, capacities, record_bytes: The ring's.
        file: Address of the open file's `File`.
        mark, engine_pid: Of chunks.
        clock_gpu_ns, clock_offset_ns, clock_drift: As `HostClock` has them.
        over: Come back when there is nothing to do.
        drained: Steps so far.
        recorded, lost, unwritten: Of these, and before these.
        tiles: Of those that were recorded.
        lost_before, told_lost, told_filtered: What the last step and the last chunk said.
    """

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("copy", "synchronize", "write", "stream", "staging", "staging_bytes")),
        *((name, ctypes.c_uint64) for name in ("steps", "slots", "published", "released")),
        *((name, _Sections) for name in ("memory", "capacities", "record_bytes")),
        ("file", ctypes.c_uint64),
        ("mark", ctypes.c_uint64),
        ("engine_pid", ctypes.c_int64),
        ("clock_gpu_ns", ctypes.c_int64),
        ("clock_offset_ns", ctypes.c_int64),
        ("clock_drift", ctypes.c_double),
        ("over", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("drained", "recorded", "lost", "unwritten", "tiles")),
        *((name, ctypes.c_int64) for name in ("lost_before", "told_lost", "told_filtered")),
    ]


class TileDrain(Drain):
    """Drains one device's ring of tiles.

    Attributes:
        filtered: Steps so far that were left out by the filters; the engine's thread counts.
        state: Counts of steps: those that were written, dropped for want of room in the ring, and dropped because they
            could not be written.
    """

    def __init__(self, ring: Ring, recorder: Recorder, engine_pid: int, facts: dict[str, Any]) -> None:
        super().__init__("kvtrace-tiles", recorder)
        import torch

        with torch.inference_mode(False):
            self._staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
        self._follow(ring, TileFiles(recorder, facts), engine_pid)
        self.state.copy = needed_entry("cuMemcpyDtoHAsync_v2")
        self.state.synchronize = needed_entry("cuStreamSynchronize")
        self.state.stream = self._stream.cuda_stream

    def _follow(self, ring: Ring, files: TileFiles, engine_pid: int) -> None:
        self._ring, self._files = ring, files  # alive: compiled code has addresses
        self._said: dict[str, Any] = {}
        self._said_at = time.monotonic()
        self.filtered = 0
        self.state = State(
            write=ctypes.cast(ctypes.CDLL(None).write, ctypes.c_void_p).value,
            staging=self._staging.data_ptr(),
            staging_bytes=self._staging.numel(),
            steps=ring.steps.data_ptr(),
            slots=len(ring.steps),
            published=ring.published.data_ptr(),
            released=ring.released.data_ptr(),
            memory=_Sections(*(memory.data_ptr() for memory in ring.memory)),
            capacities=_Sections(*ring.capacities),
            record_bytes=_Sections(*(section.record_bytes for section in SECTIONS)),
            file=ctypes.addressof(files.file),
            mark=CHUNK_MARK,
            engine_pid=engine_pid,
        )

    @property
    def rate_bytes(self) -> int:
        """Bytes written to the recording so far; the rate limit looks at it."""
        return int(self._files.file.written_bytes)

    def wait(self) -> bool:
        """Tell if there is more to come; `look` waits for it."""
        return not self.state.over

    def end(self) -> None:
        """End the waiting."""
        self.state.over = True

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def finish(self, seconds: float) -> None:
        """Copy what is left and end; say what was recorded."""
        super().finish(seconds)
        self._say()

    def _say(self) -> None:
        """Note what was recorded so far, if that is news."""
        counts: dict[str, Any] = {
            "steps": self.state.recorded,
            "lost_steps": self.state.lost,
            "unwritten_steps": self.state.unwritten,
            "filtered_steps": self.filtered,
            "tiles": self.state.tiles,
            "bytes": self.rate_bytes,
        }
        if counts != self._said:
            self._said, self._said_at = counts, time.monotonic()
            self._recorder.note("tiles", **counts)

    def look(self) -> None:
        """Copy steps as the device closes them, until the clock is due.

        Raises:
            RuntimeError: The driver refuses a copy.
        """
        state, clock, before = self.state, self._timer.clock, self.state.drained
        state.clock_gpu_ns, state.clock_offset_ns, state.clock_drift = clock.gpu_ns, clock.offset_ns, clock.drift or 0.0
        self._files.end_by_clock()
        while True:
            until_ns = min(self._timer.due_ns, self._files.ends_ns or self._timer.due_ns)
            why, number = _native.drain_tiles(ctypes.addressof(state), ctypes.sizeof(state), until_ns)
            if why == NEEDS_ROOM:
                self._files.make_room(number)
            elif why == NOT_WRITTEN:
                self._files.fail(OSError(number, os.strerror(number)))
            elif why == CUDA_FAILED:
                check(number)
            else:
                break
        if state.drained == before or time.monotonic() - self._said_at >= SAY_SECONDS:
            self._say()  # vLLM kills an engine that takes more than 5 s to end, and others kill engines at work


class RateLimit:
    """Lets whole steps through as long as the recording grows by no more than a given rate."""

    def __init__(self, max_mb_per_s: float | None) -> None:
        self._bytes_per_second = (max_mb_per_s or 0) * 1e6
        self._since = time.monotonic()

    def allows(self, written_bytes: int) -> bool:
        """Tell if there is room for another step after so many bytes."""
        if not self._bytes_per_second:
            return True
        return written_bytes <= (time.monotonic() - self._since + 0.1) * self._bytes_per_second
