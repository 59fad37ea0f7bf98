"""Tree of tracks, with its numbers and its descriptors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor

from kvtrace.queries import Trace

_FIRST_MADE_UP_PID = 1 << 22
"""Linux has no process ids from here on."""


@dataclass(frozen=True)
class Node:
    """A track by its name under its parent.

    Args:
        name: Shown, and with the others what tells it from its siblings.
        rank: Its place among its siblings.
        pid: Makes it a process.
        tid: Makes it a thread of the process `pid`.
        lane: Tells tracks of one name apart; Perfetto draws them as one, where what overlaps lies side by side.
        unit: Makes it a counter.
    """

    name: str
    rank: int = 0
    pid: int | None = None
    tid: int | None = None
    lane: int = 0
    unit: str | None = None


Path = tuple[Node, ...]
"""A track, from the root."""


class Names:
    """The processes and threads of a trace, by their keys."""

    def __init__(self, trace: Trace) -> None:
        self._pids: set[int] = set()
        self._processes = {
            row["process_id"]: self._process(_process_name(row), row["pid"], row["process_id"])
            for row in _rows(trace, "FROM process LEFT JOIN engine ON engine_id = process_id ORDER BY process_id")
        }
        self._profiled: dict[tuple[int, int | None], Node] = {}
        for row in _rows(trace, "FROM gpu_process ORDER BY source_id, pid"):
            if node := self._processes.get(row["process_id"]):
                self._profiled[row["source_id"], row["pid"]] = node
        self._programs = {
            (row["source_id"], row["pid"]): row["name"]
            for row in _rows(trace, "FROM profiled_process WHERE name IS NOT NULL")
        }
        self._threads = {
            (row["source_id"], row["pid"], row["tid"]): row["name"]
            for row in _rows(trace, "FROM profiled_thread WHERE name IS NOT NULL")
        }

    def process(self, process_id: int) -> Node:
        """A recorded process."""
        if process_id not in self._processes:
            self._processes[process_id] = Node(f"process {process_id}", rank=process_id)
        return self._processes[process_id]

    def profiled(self, source_id: int, pid: int | None) -> Node:
        """A process as a profiler saw it: the recorded one, where it is known to be the same."""
        if (source_id, pid) not in self._profiled:
            program = self._programs.get((source_id, pid), "process")
            self._profiled[source_id, pid] = self._process(f"{program} (profile {source_id})", pid, 1000 + source_id)
        return self._profiled[source_id, pid]

    def thread(self, source_id: int, pid: int | None, tid: int | None) -> Path:
        """A thread as a profiler saw it, under its process."""
        process = self.profiled(source_id, pid)
        name = self._threads.get((source_id, pid, tid)) or f"thread {tid}"
        real = process.pid is not None and process.pid < _FIRST_MADE_UP_PID
        return process, Node(name, rank=100, pid=process.pid if real else None, tid=tid if real else None)

    def _process(self, name: str, pid: int | None, rank: int) -> Node:
        """Two processes of one number, from two hosts, would become one: the second gets a number that is made up."""
        if pid in self._pids:
            pid = _FIRST_MADE_UP_PID + len(self._pids)
        if pid is not None:
            self._pids.add(pid)
        return Node(name, rank=rank, pid=pid)


class Tracks:
    """Numbers of tracks, the same in every file of an export."""

    def __init__(self) -> None:
        self._numbers: dict[Path, int] = {}
        self._paths: list[Path] = []

    def number(self, path: Path) -> int:
        """The track's number, from 1; its parents get theirs before it."""
        if path not in self._numbers:
            if len(path) > 1:
                self.number(path[:-1])
            self._paths.append(path)
            self._numbers[path] = len(self._paths)
        return self._numbers[path]

    def with_parents(self, number: int) -> list[int]:
        """A track's number after those of its parents."""
        path = self._paths[number - 1]
        return [self._numbers[path[:end]] for end in range(1, len(path) + 1)]

    def describe(self, number: int, packet: TracePacket) -> None:
        """Write a track's descriptor."""
        path = self._paths[number - 1]
        node, track = path[-1], packet.track_descriptor
        track.uuid = number
        if len(path) > 1:
            track.parent_uuid = self._numbers[path[:-1]]
            track.sibling_order_rank = node.rank
        track.child_ordering = TrackDescriptor.EXPLICIT
        if node.tid is not None:
            track.thread.pid, track.thread.tid, track.thread.thread_name = node.pid, node.tid, node.name
        elif node.pid is not None:
            track.process.pid, track.process.process_name = node.pid, node.name
        else:
            track.name = node.name
        if node.unit is not None:
            track.counter.unit_name = node.unit
            track.counter.y_axis_share_key = node.unit


def in_lane(path: Path, lane: int) -> Path:
    """The same track's lane of that number, from 0."""
    return (*path[:-1], replace(path[-1], lane=lane)) if lane else path


def _rows(trace: Trace, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = trace.sql(sql, "arrow").to_pylist()
    return rows


def _process_name(row: dict[str, Any]) -> str:
    engine = f"engine {row['process_id']}, " if row["engine_id"] else ""
    return f"vLLM {engine}{row['roles']}"
