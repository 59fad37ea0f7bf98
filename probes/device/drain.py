"""From the device ring to the capture log: a thread that polls pinned memory and copies on a stream of its own."""

from __future__ import annotations

import threading
import time
from typing import Any

from kvtrace.capture import Recorder
from kvtrace.events import KV_WINDOW, WindowKind
from kvtrace.probes.device.stamps import Stamps

POLL_SECONDS = 0.02
CALIBRATE_SECONDS = 1.0
"""The GPU's timer drifts by 2 us a second against the host's clock; a calibration takes about 0.2 ms of this thread."""


class Drain(threading.Thread):
    """Drains one device's ring until `finish` is called.

    Steps that the ring lost before they could be copied are counted as dropped, whole.
    """

    def __init__(self, stamps: Stamps, recorder: Recorder, engine_pid: int) -> None:
        super().__init__(name="kvtrace-drain", daemon=True)
        import numpy
        import torch

        self._torch = torch
        self._stamps = stamps
        self._recorder = recorder
        self._device = torch.cuda.current_device()
        self._published = stamps.published.numpy()
        self._drained = 0
        self._offset_ns = 0
        self._calibrated = 0.0
        self._over = threading.Event()
        with torch.inference_mode(False):
            self._stream = torch.cuda.Stream()
            self._pinned = torch.empty((stamps.slots, stamps.words), dtype=torch.int64, pin_memory=True)
        windows = 2 * stamps.layers
        self._rows = numpy.zeros(windows, dtype=_record_type(numpy))
        self._rows["engine_id"] = engine_pid
        self._rows["layer"] = numpy.arange(windows) // 2
        self._rows["kind"] = numpy.tile([WindowKind.write, WindowKind.attention], stamps.layers)

    def run(self) -> None:
        """Poll until the end. Any failure ends the recording of windows, nothing else."""
        try:
            with self._torch.inference_mode(False):
                self._torch.cuda.set_device(self._device)
                while not self._over.wait(POLL_SECONDS):
                    if time.monotonic() - self._calibrated > CALIBRATE_SECONDS:
                        self._calibrate()
                    self._copy()
                self._copy()
        except Exception as error:
            self._recorder.note("device", state="stopped", detail=f"{type(error).__name__}: {error}")

    def finish(self) -> None:
        """Copy what is left and end."""
        self._over.set()
        self.join(timeout=5)

    def _calibrate(self) -> None:
        """Find the global timer's offset to CLOCK_MONOTONIC by asking a running kernel for the time."""
        asked, answers = self._stamps.asked.numpy(), self._stamps.answers.numpy()
        asked[0] = 0
        answers[:] = 0
        self._stamps.answer(self._stream.cuda_stream)
        best: tuple[int, int] | None = None
        now = time.monotonic_ns
        for index in range(len(answers)):
            before = now()
            asked[0] = index + 1
            while not answers[index] and now() - before < 2_000_000:
                pass
            after = now()
            if not answers[index]:
                break
            if index and (best is None or after - before < best[0]):
                best = after - before, (before + after) // 2 - int(answers[index])
        self._stream.synchronize()
        if best is None:
            raise RuntimeError("the GPU's timer could not be read")
        moved = best[1] - self._offset_ns if self._offset_ns else 0
        self._offset_ns = best[1]
        self._calibrated = time.monotonic()
        self._recorder.note("gpu_clock", offset_ns=best[1], uncertainty_ns=(best[0] + 1) // 2, moved_ns=moved)

    def _copy(self) -> None:
        published, slots = int(self._published[0]), self._stamps.slots
        if published - self._drained > slots - slots // 8:  # what is older may be overwritten while it is copied
            kept = published - slots // 2
            self._recorder.drop(KV_WINDOW, (kept - self._drained) * len(self._rows))
            self._recorder.note("device", state="overrun", dropped_steps=kept - self._drained)
            self._drained = kept
        while self._drained < published:
            start = self._drained % slots
            count = min(published - self._drained, slots - start)
            self._stream_copy(start, count)
            for slot in self._pinned[:count].numpy():
                self._write(slot)
            self._drained += count

    def _stream_copy(self, start: int, count: int) -> None:
        with self._torch.cuda.stream(self._stream):
            self._pinned[:count].copy_(self._stamps.ring[start : start + count], non_blocking=True)
        self._stream.synchronize()

    def _write(self, slot: Any) -> None:
        """A step's windows into the log."""
        times = slot[1:].reshape(-1, 2)
        kept = times[:, 0] > 0
        if not kept.any():  # a step without tokens
            return
        rows = self._rows[kept]
        rows["step"] = slot[0]
        rows["start_ns"] = times[kept, 0] + self._offset_ns
        rows["end_ns"] = times[kept, 1] + self._offset_ns
        self._recorder.append(KV_WINDOW, rows.view("u1").reshape(len(rows), -1))


def _record_type(numpy: Any) -> Any:
    """A capture record of `KV_WINDOW` as numpy sees it, with its commit byte last."""
    return numpy.dtype([(field.name, f"<{field.type.code}") for field in KV_WINDOW.fields] + [("whole", "B")])
