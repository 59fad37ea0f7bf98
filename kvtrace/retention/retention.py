"""The flight recorder: limits a recording's size or age by discarding its oldest segments, outside of vLLM's processes.

A segment may be discarded when its process has begun the next one. Compaction retains what later records need of it
(`kvtrace.retention.compaction`) in a segment that takes its place; discarded records are counted in `kept.json`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvtrace.capture.limits import Limits
from kvtrace.events import REQUEST_ARRIVAL
from kvtrace.format import layout
from kvtrace.retention.process import File, ProcessRetention

_ARRIVAL_NS = 86_400_000_000_000
"""Arrivals of requests that no engine saw the end of are retained for a day."""
_SLACK = 8
"""An eighth of the cap is freed when segments are discarded, for allocations until the next look."""


class Retention:
    """Looks at a run directory again and again.

    Args:
        run_dir: The run directory.
        limits: How much stays.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(self, run_dir: Path, limits: Limits, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._run_dir = run_dir
        self._limits = limits
        self._clock = clock
        self._processes: dict[Path, ProcessRetention] = {}

    def enforce(self) -> int:
        """Discard files that are too old or too many; returns the number of discarded files.

        Raises:
            KvtraceError, OSError: A file cannot be read or written. Do not look again: some may be counted already.
        """
        with locked(self._run_dir):
            self._find_processes()
            now_ns = self._clock()
            chosen = self._choose(now_ns)
            for process, files in chosen.items():
                process.fold(files)
            if chosen:
                self._forget(now_ns)
            for process, files in chosen.items():
                process.discard(files, now_ns)
        return sum(map(len, chosen.values()))

    def _find_processes(self) -> None:
        directory = self._run_dir / layout.PROCESSES
        for path in directory.iterdir() if directory.is_dir() else ():
            if path not in self._processes and path.is_dir():
                self._processes[path] = ProcessRetention(path)

    def _choose(self, now_ns: int) -> dict[ProcessRetention, list[File]]:
        """The files to discard, in the order of their ends."""
        too_much, too_old_ns = 0, -1
        if (most := self._limits.max_bytes) is not None and (size := _bytes(self._run_dir)) > most - most // _SLACK:
            too_much = size - (most - most // _SLACK)
        if self._limits.keep_ns is not None:
            too_old_ns = now_ns - self._limits.keep_ns
        chosen: defaultdict[ProcessRetention, list[File]] = defaultdict(list)
        closed = [(file, process) for process in self._processes.values() for file in process.closed(now_ns)]
        for file, process in sorted(closed, key=lambda found: found[0]):
            if too_much <= 0 and file.end_ns > too_old_ns:
                break
            chosen[process].append(file)
            too_much -= file.bytes
        return chosen

    def _forget(self, now_ns: int) -> None:
        """Drop retained records of requests that no remaining record can refer to, in all processes."""
        oldest_ns = min(process.oldest_ns(now_ns) for process in self._processes.values())
        forgotten: set[str] = set()
        for process in self._processes.values():
            if numbers := process.compaction.forget(oldest_ns):
                strings = process.strings()
                forgotten |= {strings[number] for number in numbers if number in strings}
        for process in self._processes.values():
            if process.compaction.records(REQUEST_ARRIVAL.name):
                gone = {number for number, text in process.strings().items() if text in forgotten}
                process.compaction.forget_arrivals(gone, now_ns - _ARRIVAL_NS)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """While this holds, no other process discards segments or takes a snapshot."""
    descriptor = os.open(run_dir / layout.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)  # until it is closed
        yield
    finally:
        os.close(descriptor)


def _bytes(run_dir: Path) -> int:
    """Bytes of the run directory, as allocated."""
    total = 0
    for folder, _, names in os.walk(run_dir):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).lstat().st_blocks * 512
    return total
