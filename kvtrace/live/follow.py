"""Following a run directory: one that does not exist yet, grows, is replaced, or has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.errors import KvtraceError
from kvtrace.events import EVENTS
from kvtrace.format import layout
from kvtrace.format.discarded import read_discards
from kvtrace.format.processes import is_alive, is_here
from kvtrace.format.reader import ProcessRecording, open_recording, segment_names
from kvtrace.live.engine import STREAMS, EngineState
from kvtrace.live.names import Names
from kvtrace.live.tail import DTYPES, PATIENCE_S, Rows, Tail

_MOST_RECORDS = 1 << 16
_FIELDS: Any = {name: [field.name for field in EVENTS[name].fields] for name in STREAMS}
_EMPTY: dict[str, Rows] = {
    name: np.zeros(0, [(field.name, DTYPES[field.type.code]) for field in EVENTS[name].fields]) for name in STREAMS
}


@dataclass
class EngineFollower:
    """One engine's process: its tails, and its state."""

    process: ProcessRecording
    state: EngineState
    tails: dict[str, Tail]
    names: Names | None
    pending: dict[str, Rows] = field(default_factory=lambda: dict(_EMPTY))
    alive: bool = True
    here: bool = True

    def poll(self) -> None:
        """Take up what was written since the last time."""
        try:
            while self._take_up():
                pass
            if self.names is not None:
                self.names.read()
        except FileNotFoundError:  # the run was removed, or the recording replaced: the follower sees that, too
            return

    def now_ns(self) -> int:
        """The end of the window (CLOCK_MONOTONIC): now, while the process lives on this host; else the last record."""
        return max(time.monotonic_ns() if self.alive and self.here else 0, self.state.last_ns)

    def lost_records(self) -> dict[str, int]:
        """Records that the process could not write, by stream."""
        return {name: count for name, count in self.process.dropped().items() if count}

    def unread(self) -> tuple[int, int]:
        """Torn records passed over, and segments discarded before they were read."""
        return sum(t.torn for t in self.tails.values()), sum(t.skipped_files for t in self.tails.values())

    def close(self) -> None:
        """Close the files."""
        for tail in self.tails.values():
            tail.close()

    def _take_up(self) -> bool:
        """Read the next records and fold those of whole steps; False if all are read.

        A stream whose records were cut off for their number holds the others up at its last whole step.
        """
        on_disk = segment_names(self.process.directory)
        kept = read_discards(self.process.directory)
        behind = set()
        for name in STREAMS:
            first = kept.streams[name].first if name in kept.streams else 0
            room = _MOST_RECORDS - len(self.pending[name])
            sequences = [sequence for sequence in on_disk.get(name, ()) if sequence >= first]
            rows = self.tails[name].read(sequences, room) if room > 0 else None
            if rows is not None:
                self.pending[name] = np.concatenate([self.pending[name], rows[_FIELDS[name]]])
            if len(self.pending[name]) >= _MOST_RECORDS:
                behind.add(name)
        self._fold(behind)
        return bool(behind)

    def _fold(self, behind: set[str]) -> None:
        steps = self.pending["step_schedule"]["step"]
        horizon = int(steps[-1]) if len(steps) else int(self.state.step["step"]) if self.state.step is not None else 0
        for name in behind - {"request_queued"}:
            horizon = min(horizon, int(self.pending[name]["step"][-1]) - 1)
        until_ns = None
        if behind:
            passed = steps[: _count_until(steps, horizon)]
            until_ns = int(self.pending["step_schedule"]["start_ns"][len(passed) - 1]) if len(passed) else 0
        ready = {}
        for name, rows in self.pending.items():
            if name == "request_queued":
                end = len(rows) if until_ns is None else int(np.searchsorted(rows["time_ns"], until_ns, "right"))
            else:
                end = _count_until(rows["step"], horizon)
            ready[name], self.pending[name] = rows[:end], rows[end:].copy()
        self.state.fold(ready)


def _count_until(steps: np.ndarray, horizon: int) -> int:
    """How many of a stream's first records are of no later step; those without a step go along."""
    return int(np.searchsorted(np.maximum.accumulate(steps), horizon, "right")) if len(steps) else 0


class Follower:
    """Follows a run directory.

    Args:
        run_dir: The run directory; it may not exist yet.
        with_names: Read the texts of ids, too.
        patience_s: How long a record before whole ones may be being written.

    Attributes:
        engines: Its engines, in order of start.
        problem: Why the recording cannot be read at the moment, or None.
    """

    def __init__(self, run_dir: Path, *, with_names: bool = False, patience_s: float = PATIENCE_S) -> None:
        self.run_dir = run_dir
        self.engines: list[EngineFollower] = []
        self.problem: str | None = None
        self.started_ns: int | None = None
        self.ended = False
        self.exit_code: int | None = None
        self._with_names = with_names
        self._patience_s = patience_s
        self._journal_bytes: dict[Path, int] = {}
        self._known: set[Path] = set()

    def poll(self) -> None:
        """Take up what was written since the last time. Never raises for what a recording may hold."""
        try:
            self.problem = None
            self._read_manifest()
            self._find_engines()
            for engine in self.engines:
                engine.here = is_here(engine.process.facts)
                engine.alive = is_alive(engine.process.facts) if engine.here else not self.ended
                engine.poll()
        except KvtraceError as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"{self.run_dir} cannot be read: {error.strerror}"
        except (ValueError, IndexError, TypeError, OverflowError, AttributeError) as error:
            self.problem = f"{self.run_dir} is damaged: a record or a fact in it cannot be right ({error})"

    @property
    def waiting_for(self) -> str | None:
        """A recording or an engine that has not started yet; None once an engine records."""
        if self.engines:
            return None
        return "a recording to start" if self.started_ns is None else "an engine to start"

    def _read_manifest(self) -> None:
        try:
            manifest = json.loads((self.run_dir / layout.MANIFEST).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            manifest = {}
        started_ns = manifest.get("started_ns")
        if started_ns != self.started_ns:
            self._forget()
            self.started_ns = started_ns
        self.ended, self.exit_code = "ended_ns" in manifest, manifest.get("exit_code")

    def _forget(self) -> None:
        """Begin anew: there is another recording, or none any more."""
        for engine in self.engines:
            engine.close()
        self.engines, self._journal_bytes, self._known = [], {}, set()

    def _find_engines(self) -> None:
        """Open processes that became engines."""
        told = [
            self._tells_of_an_engine(directory) for directory in self._directories() if directory not in self._known
        ]
        if not any(told):
            return
        for process in open_recording(self.run_dir).processes:
            if process.directory not in self._known and process.engine:
                self._known.add(process.directory)
                self.engines.append(self._follow(process))

    def _tells_of_an_engine(self, directory: Path) -> bool:
        """Read a journal's new lines; those of workers grow all the time, and are not parsed for that."""
        begin = self._journal_bytes.get(directory, 0)
        try:
            with (directory / layout.JOURNAL).open("rb") as file:
                file.seek(begin)
                lines = file.read()
        except FileNotFoundError:
            return False
        end = lines.rfind(b"\n") + 1
        self._journal_bytes[directory] = begin + end
        return b'"engine"' in lines[:end]

    def _directories(self) -> Iterator[Path]:
        processes = self.run_dir / layout.PROCESSES
        if processes.is_dir():
            yield from (path for path in processes.iterdir() if path.is_dir())

    def _follow(self, process: ProcessRecording) -> EngineFollower:
        clock = process.clocks[-1]
        state = EngineState(process.engine, clock.realtime_ns - clock.monotonic_ns)
        tails = {name: Tail(process.directory, name, self._patience_s) for name in STREAMS}
        return EngineFollower(process, state, tails, Names(process.directory) if self._with_names else None)
