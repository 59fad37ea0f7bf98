"""Counts what a recording that is still going on holds, cheaply: a few reads of one byte a segment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.events import STEP_SCHEDULE
from kvtrace.format import layout
from kvtrace.format.discarded import read_discards
from kvtrace.format.reader import ProcessRecording, Segment, open_recording

_RATE_WINDOW_NS = 5_000_000_000


@dataclass(frozen=True)
class Reading:
    """Amount recorded so far. `bytes` are those of records, not of the files, which are allocated ahead."""

    processes: int = 0
    records: int = 0
    bytes: int = 0
    dropped: int = 0
    steps_per_s: float | None = None


class Meter:
    """Reads a run directory again and again; segments that are full are read only once."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._processes: dict[Path, ProcessRecording] = {}
        self._full: dict[Path, int] = {}
        self._steps: deque[tuple[int, int]] = deque()

    def read(self, now_ns: int) -> Reading | None:
        """The counts at `now_ns` (CLOCK_MONOTONIC), or None if the recording cannot be read at this moment."""
        try:
            self._find_processes()
            records = size = steps = dropped = 0
            full, self._full = self._full, {}
            for process in self._processes.values():
                process.discards = read_discards(process.directory)
                dropped += sum(process.dropped().values())
                for event, segments in process.segments().items():
                    count = sum(self._count(segment, full) for segment in segments)
                    records += count
                    size += count * segments[0].record_bytes
                    if event == STEP_SCHEDULE.name:
                        steps += count + process.discarded(event).records
        except (KvtraceError, OSError, ValueError):
            return None
        return Reading(len(self._processes), records, size, dropped, self._rate(now_ns, steps))

    def _find_processes(self) -> None:
        """Open the recording again only when there are process directories that were not read yet."""
        directory = self._run_dir / layout.PROCESSES
        found = set(directory.iterdir()) if directory.is_dir() else set()
        if found - self._processes.keys():
            for process in open_recording(self._run_dir).processes:
                self._processes.setdefault(process.directory, process)

    def _count(self, segment: Segment, full: dict[Path, int]) -> int:
        """The records of a segment; those of full ones as counted before, and forgotten when the file is gone."""
        count = full.get(segment.path)
        if count is None or segment.carried:
            count = segment.committed_estimate()
        if segment.followed:
            self._full[segment.path] = count
        return count

    def _rate(self, now_ns: int, steps: int) -> float | None:
        """Steps per second over the last few seconds; None before the first step."""
        self._steps.append((now_ns, steps))
        while len(self._steps) > 2 and now_ns - self._steps[0][0] > _RATE_WINDOW_NS:
            self._steps.popleft()
        since_ns, before = self._steps[0]
        if not steps or now_ns == since_ns:
            return None
        return (steps - before) * 1e9 / (now_ns - since_ns)
