"""Begins new segments by time, from a thread of its own, so that vLLM's threads do not wait for the disk."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.capture import Recorder


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
