"""From the device ring to the capture log: a thread that polls pinned memory and copies on a stream of its own."""

from __future__ import annotations

import threading
import time
from typing import Any

from kvtrace.capture import Recorder
from kvtrace.events import KV_WINDOW
from kvtrace.probes.device.stamps import RECORD_WORDS, Stamps

POLL_SECONDS = 0.02
CALIBRATE_SECONDS = 5.0


class Drain(threading.Thread):
    """Drains one device's ring until `finish` is called.

    Whole steps are dropped, and counted, if the ring was overrun before they could be copied.
    """

    def __init__(self, stamps: Stamps, recorder: Recorder, engine_pid: int) -> None:
        super().__init__(name="kvtrace-drain", daemon=True)
        import torch

        self._torch = torch
        self._stamps = stamps
        self._recorder = recorder
        self._emit = recorder.stream(KV_WINDOW)
        self._engine_pid = engine_pid
        self._device = torch.cuda.current_device()
        self._stream = torch.cuda.Stream()
        self._pinned = torch.empty((stamps.records, RECORD_WORDS), dtype=torch.int64, pin_memory=True)
        self._published = stamps.published.numpy()
        self._drained = 0
        self._skip_step = -1
        self._offset_ns = 0
        self._calibrated = 0.0
        self._over = threading.Event()
        self.dropped_steps: set[int] = set()

    def run(self) -> None:
        try:
            self._torch.cuda.set_device(self._device)
            while not self._over.wait(POLL_SECONDS):
                if time.monotonic() - self._calibrated > CALIBRATE_SECONDS:
                    self._calibrate()
                self._copy()
            self._copy()
        except Exception as error:  # the engine goes on; the trace says what is missing
            self._recorder.note("device", state="stopped", detail=f"{type(error).__name__}: {error}")

    def finish(self) -> None:
        """Copy what is left and end."""
        self._over.set()
        self.join(timeout=5)

    def _calibrate(self) -> None:
        """Find the global timer's offset to CLOCK_MONOTONIC by asking a running kernel for the time."""
        stamps = self._stamps
        asked, answers = stamps.asked.numpy(), stamps.answers.numpy()
        asked[0] = 0
        answers[:] = 0
        stamps.answer(self._stream.cuda_stream)
        best: tuple[int, int] | None = None
        now = time.monotonic_ns
        for index in range(len(answers)):
            before = now()
            asked[0] = index + 1
            while not answers[index]:
                if now() - before > 2_000_000:
                    break
            after = now()
            if not answers[index]:
                break
            if index > 2 and (best is None or after - before < best[0]):
                best = after - before, (before + after) // 2 - int(answers[index])
        self._stream.synchronize()
        if best is None:
            raise RuntimeError("the GPU's timer could not be read")
        drift = best[1] - self._offset_ns if self._offset_ns else 0
        self._offset_ns = best[1]
        self._calibrated = time.monotonic()
        self._recorder.note("gpu_clock", offset_ns=best[1], uncertainty_ns=(best[0] + 1) // 2, moved_ns=drift)

    def _copy(self) -> None:
        filled = int(self._published[0])
        size = self._stamps.records
        if filled - self._drained > size - size // 8:  # what is older may be overwritten while it is copied
            self._drop(filled - size // 2)
        while self._drained < filled:
            start = self._drained % size
            count = min(filled - self._drained, size - start)
            with self._torch.cuda.stream(self._stream):
                self._pinned[:count].copy_(self._stamps.ring[start : start + count], non_blocking=True)
            self._stream.synchronize()
            self._write(self._pinned[:count].numpy())
            self._drained += count

    def _drop(self, until: int) -> None:
        """Skip to `until`, and on to the end of the step that is cut there."""
        self._recorder.note("device", state="overrun", detail=f"{until - self._drained} windows not copied in time")
        self._drained = until
        self._skip_step = 0

    def _write(self, rows: Any) -> None:
        emit, offset, pid = self._emit, self._offset_ns, self._engine_pid
        for start, packed, where in rows.tolist():
            step = packed >> 32
            if self._skip_step >= 0:
                if self._skip_step in (0, step):
                    self._skip_step = step
                    continue
                self._skip_step = -1
            begin = start + offset
            emit(begin, begin + (packed & 0xFFFFFFFF), pid, step, where & 0xFFFF, where >> 16 & 0xFF)
