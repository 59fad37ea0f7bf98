"""A thread that drains a device's ring, and a schedule for one that runs Python.

While it does the engine's threads cannot, and a step's results, or the next step, come later by as much. Right after a
step has been enqueued the engine's next work is to wait for the GPU, so that is when to look; not behind the first ones
after a pause, which compute prompts, and where the processor launches kernels one by one.
"""

from __future__ import annotations

import ctypes
import threading
import time

from kvtrace.capture.recorder import Recorder
from kvtrace.probes.device.cuda import stay_out_of_captures
from kvtrace.probes.device.memory import MemoryMeter
from kvtrace.probes.device.timer import GpuTimer

_PR_SET_NAME = 15

IDLE_SECONDS = 0.25
"""Seconds without a step after which those on the device are taken home. They stay there twice as long at most."""


class DrainSchedule:
    """Lets one thread wait until another has enqueued a step.

    Args:
        seconds: It is not to look more often than this, nor so soon after a pause of as long.
        idle_seconds: It is to look when nothing has been enqueued for so long.
    """

    def __init__(self, seconds: float, idle_seconds: float = IDLE_SECONDS) -> None:
        self._seconds = seconds
        self._idle_seconds = idle_seconds
        self._due = self._enqueued_at = 0.0
        self._over = False
        self._wake = threading.Event()

    def enqueued(self) -> None:
        """Wake the thread if it is due: a step has been enqueued."""
        now, before = time.monotonic(), self._enqueued_at
        self._enqueued_at = now
        if now - before >= self._seconds:
            self._due = now + self._seconds
        if now >= self._due:
            self._due = now + self._seconds
            self._wake.set()

    def wait(self) -> bool:
        """Wait until the ring is due. False: nothing will come any more."""
        while not self._wake.wait(self._idle_seconds):
            if time.monotonic() - self._enqueued_at >= self._idle_seconds:
                break
        self._wake.clear()
        return not self._over

    def end(self) -> None:
        """End the waiting: nothing will be enqueued any more."""
        self._over = True
        self._wake.set()


def show_name(name: str) -> None:
    """Name the calling thread in the system's lists (`top -H`, perf), by 15 bytes. Python does that from 3.14 on."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


class Drain(threading.Thread):
    """Looks at one ring of the current device until `finish` is called.

    Any failure ends the recording from that ring, nothing else.
    """

    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__(name=name, daemon=True)
        import torch

        self._torch = torch
        self._recorder = recorder
        self._device = torch.cuda.current_device()
        self._timer = GpuTimer(recorder)
        self._memory = MemoryMeter(recorder)
        with torch.inference_mode(False):
            self._stream = torch.cuda.Stream(priority=-1)

    def wait(self) -> bool:
        """Wait until it is time to look. False: this is the end. Called by this thread."""
        raise NotImplementedError

    def end(self) -> None:
        """End the waiting. Called by another thread."""
        raise NotImplementedError

    def look(self) -> None:
        """Copy new records from the device. Called by this thread, on `self._stream`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close files. Called by this thread, last."""

    def run(self) -> None:
        """Drain until the end, then once more."""
        try:
            show_name(self.name)
            with self._torch.inference_mode(False):
                self._torch.cuda.set_device(self._device)
                stay_out_of_captures()  # vLLM may make graphs while it serves
                self._torch.cuda.set_stream(self._stream)
                while self.wait():
                    self._timer.keep(self._stream)
                    self._memory.keep()
                    self.look()
                self.look()
        except Exception as error:
            self._recorder.note("device", state="stopped", detail=f"{type(error).__name__}: {error}")
        finally:
            self.close()

    def finish(self, seconds: float) -> None:
        """Drain the rest and end, within so many seconds."""
        self.end()
        self.join(timeout=seconds)
