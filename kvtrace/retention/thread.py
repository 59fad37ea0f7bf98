"""The flight recorder's thread in `kvtrace record`: discards old segments, and takes snapshots on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from kvtrace.capture.limits import Limits
from kvtrace.errors import KvtraceError
from kvtrace.retention.retention import Retention
from kvtrace.retention.snapshot import snapshot, snapshot_name

INTERVAL_S = 1.0


class FlightRecorder(threading.Thread):
    """Looks at the recording every second, until `finish`.

    Args:
        run_dir: The run directory.
        limits: How much stays.
        say: Tells the user a line.
    """

    def __init__(self, run_dir: Path, limits: Limits, say: Callable[[str], None]) -> None:
        super().__init__(name="kvtrace-flight", daemon=True)
        self._run_dir = run_dir
        self._retention: Retention | None = Retention(run_dir, limits)
        self._say = say
        self._wake = threading.Event()
        self._asked = threading.Event()
        self._over = threading.Event()

    def freeze(self) -> None:
        """Ask for a snapshot, soon."""
        self._asked.set()
        self._wake.set()

    def run(self) -> None:
        """Keep, and freeze when asked."""
        while not self._over.is_set():
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            self._look()

    def finish(self) -> None:
        """End after a last look."""
        self._over.set()
        self._wake.set()
        self.join()

    def _look(self) -> None:
        if self._asked.is_set():
            self._asked.clear()
            try:
                self._say(f"snapshot: {snapshot(self._run_dir, snapshot_name(self._run_dir.absolute()))}")
            except (KvtraceError, OSError) as error:
                self._say(str(error))
        if self._retention is not None:
            try:
                self._retention.enforce()
            except Exception as error:  # the recording goes on, whatever became of it
                self._retention = None
                self._say(f"old records are no longer discarded, so the recording grows: {error!r}")
