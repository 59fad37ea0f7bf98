"""From the ring to the tile files: a thread that follows closed steps and copies them on a stream of its own."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.stream import fence
from kvtrace.format.tile_file import CHUNK_MARK, Chunk, padded
from kvtrace.probes.device.drain_thread import Drain
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.files import TileFiles
from kvtrace.probes.device.tiles.layout import SECTIONS
from kvtrace.probes.device.tiles.ring import STEP_SLOTS, Ring

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

STAGING_BYTES = 32 << 20
SAY_SECONDS = 1.0
"""Seconds between two counts of what was recorded."""


class TileDrain(Drain):
    """Drains one device's ring of tiles.

    Attributes:
        rate_bytes: Bytes written to the recording so far; the rate limit looks at it.
        recorded, lost, unwritten, filtered: Steps so far that were written, dropped for want of room in the ring,
            dropped because they could not be written, and left out by the filters.
    """

    def __init__(self, ring: Ring, recorder: Recorder, engine_pid: int, facts: dict[str, Any]) -> None:
        super().__init__("kvtrace-tiles", recorder, seconds=0)
        import torch

        self._ring = ring
        self._engine_pid = engine_pid
        self._files = TileFiles(recorder, facts)
        self._steps = ring.steps.numpy()
        self._published = ring.published.numpy()
        self._released = ring.released.numpy()
        self._drained = 0
        self._lost_before = 0
        self._reported = (0, 0)
        self._opened: deque[tuple[int, int]] = deque()  # steps on the device, and how many were left out before each
        self.recorded = self.lost = self.unwritten = self.filtered = self.tiles = 0
        self._said: dict[str, Any] = {}
        self._said_at = 0.0
        with torch.inference_mode(False):
            self._staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
        self._staged = self._staging.numpy()

    def leave_out(self) -> None:
        """Count a filtered step: the device does not hear of it."""
        self.filtered += 1

    def opened(self, step: int) -> None:
        """Note a step that is on its way to the device."""
        self._opened.append((step, self.filtered))

    def _left_out_before(self, step: int) -> int:
        while self._opened and self._opened[0][0] < step:  # those were lost
            self._opened.popleft()
        return self._opened.popleft()[1] if self._opened else self.filtered

    @property
    def rate_bytes(self) -> int:
        """Bytes written to the recording so far."""
        return self._files.bytes_written

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
            "steps": self.recorded,
            "lost_steps": self.lost,
            "unwritten_steps": self.unwritten,
            "filtered_steps": self.filtered,
            "tiles": self.tiles,
            "bytes": self.rate_bytes,
        }
        if counts != self._said:
            self._said, self._said_at = counts, time.monotonic()
            self._recorder.note("tiles", **counts)

    def look(self) -> None:
        """Copy the steps that the device has closed."""
        published = int(self._published[0])
        fence()  # what the device wrote before it is read after it, on processors that reorder reads, too
        if self._drained == published and time.monotonic() - self._said_at >= SAY_SECONDS:
            self._say()  # vLLM kills an engine that takes more than 5 s to end
        while self._drained < published:
            self._take(self._steps[self._drained % STEP_SLOTS])
            self._drained += 1
            self._released[len(SECTIONS)] = self._drained

    def _take(self, step: NDArray[int64]) -> None:
        self.lost += int(step[layout.LOST_BEFORE_WORD]) - self._lost_before
        self._lost_before = int(step[layout.LOST_BEFORE_WORD])
        state = int(step[layout.STATE_WORD])
        starts = [int(step[layout.START_WORD + section]) for section in range(len(SECTIONS))]
        counts = [int(step[layout.COUNT_WORD + section]) for section in range(len(SECTIONS))]
        if state != layout.RECORDED:
            self.lost += 1
            counts = [0] * len(SECTIONS)
        elif self._write(self._chunk(step, starts, counts), starts, counts):
            self.recorded += 1
            self.tiles += counts[layout.TILES]
        else:
            self.unwritten += 1
        for section, (start, count) in enumerate(zip(starts, counts, strict=True)):
            self._released[section] = start + count

    def _write(self, chunk: Chunk, starts: list[int], counts: list[int]) -> bool:
        """Write a step to the file; False if that failed."""
        if self._files.failed is None:
            self._files.begin(chunk)
            self._copy(starts, counts)
        return self._files.failed is None

    def _chunk(self, step: NDArray[int64], starts: list[int], counts: list[int]) -> Chunk:
        lost, filtered = self._reported
        number = int(step[layout.STEP_WORD])
        self._reported = self.lost, self._left_out_before(number)
        return Chunk(
            CHUNK_MARK,
            self._engine_pid,
            number,
            int(step[layout.TIME_WORD]),
            self._timer.clock.offset_at(int(step[layout.TIME_WORD])),
            (self._address(layout.TILES, starts) >> 1) & 0xFFFFFFFF,
            counts[layout.PROGRAMS],
            counts[layout.TILES],
            counts[layout.WRITES],
            self.lost - lost,
            self._reported[1] - filtered,
        )

    def _address(self, section: int, starts: list[int]) -> int:
        offset = starts[section] % self._ring.capacities[section] * SECTIONS[section].record_bytes
        return int(self._ring.memory[section].data_ptr()) + offset

    def _copy(self, starts: list[int], counts: list[int]) -> None:
        """Copy a step's sections through the staging buffer into the file."""
        used = 0
        for section, (start, count) in enumerate(zip(starts, counts, strict=True)):
            size = SECTIONS[section].record_bytes
            first = start % self._ring.capacities[section] * size
            left = count * size
            while left:
                part = min(left, STAGING_BYTES - used)
                self._staging[used : used + part].copy_(
                    self._ring.memory[section][first : first + part], non_blocking=True
                )
                used, first, left = used + part, first + part, left - part
                if left:
                    used = self._flush(used)
            padding = padded(count * size) - count * size
            if used + padding > STAGING_BYTES:
                used = self._flush(used)
            self._staged[used : used + padding] = 0
            used += padding
        self._flush(used)

    def _flush(self, used: int) -> int:
        self._stream.synchronize()
        self._files.write(memoryview(self._staged[:used]))
        return 0


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
