"""Translates captured ids to the trace's: interned strings, requests and process ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvtrace.format.reader import ProcessRecording
from kvtrace.ingest import columns

Ids = npt.NDArray[np.unsignedinteger[Any]]
Keys = npt.NDArray[np.int32]


class RequestKeys:
    """Hands out the keys of table `request`: one for each internal id, whichever processes recorded it.

    Where several engines used an id, each of them has a key of its own (`kvtrace.ingest.derive.owners`).
    """

    def __init__(self) -> None:
        self.internal_ids: list[str] = []
        self._keys: dict[tuple[str, int], int] = {}

    def key(self, internal_id: str, owner: int = 0) -> int:
        """The request's key, from 1, in order of first use; `owner` tells requests of one id apart."""
        key = self._keys.setdefault((internal_id, owner), len(self.internal_ids) + 1)
        if key > len(self.internal_ids):
            self.internal_ids.append(internal_id)
        return key


class ProcessIds:
    """Translates the ids that one process captured. What cannot be translated becomes null and is counted."""

    def __init__(
        self,
        strings: Mapping[int, str],
        requests: RequestKeys,
        processes: dict[int, int],
        owner_of: Callable[[str], int],
    ) -> None:
        self.unknown: Counter[str] = Counter()
        self._owner_of = owner_of
        numbers = [0, *sorted(strings)]
        self._strings = ["", *(strings[number] for number in numbers[1:])]
        # A flight recorder leaves gaps; elsewhere a number is its own place in the list.
        self._numbers = np.array(numbers, np.int64) if numbers[-1] >= len(numbers) else None
        self._arrow_strings: pa.Array[Any] | None = None
        self._requests = requests
        self._processes = processes
        self._key_of = np.zeros(len(self._strings), np.int32)

    def requests(self, ids: Ids, column: str) -> Keys:
        """Interned request ids to keys of table `request`; 0 is null."""
        ids = self._known(ids, column)
        keys = self._key_of[ids]
        new = ids[(keys == 0) & (ids != 0)]
        if new.size:
            for number in dict.fromkeys(new.tolist()):
                text = self._strings[number]
                self._key_of[number] = self._requests.key(text, self._owner_of(text))
            keys = self._key_of[ids]
        return keys

    def strings(self, ids: Ids, column: str) -> pa.Array[Any]:
        """Interned strings to their text; an empty one is null."""
        if self._arrow_strings is None:
            self._arrow_strings = columns.texts(self._strings)
        return self._arrow_strings.take(columns.numbers(self._known(ids, column), pa.uint32()))

    def processes(self, pids: npt.NDArray[np.int32], column: str) -> Keys:
        """Pids to `process.process_id`; 0 is null."""
        distinct, inverse, counts = np.unique(pids, return_inverse=True, return_counts=True)
        for pid, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            if pid and pid not in self._processes:
                self.unknown[column] += count
        keys = np.array([self._processes.get(pid, 0) for pid in distinct.tolist()], np.int32)
        return keys[inverse]

    def _known(self, ids: Ids, column: str) -> Ids:
        """Places in `_strings`; 0 for what is not there."""
        if self._numbers is None:
            places, missing = ids, ids >= len(self._strings)
        else:
            places = np.minimum(np.searchsorted(self._numbers, ids), len(self._numbers) - 1).astype(ids.dtype)
            missing = self._numbers[places] != ids
        if not missing.any():
            return places
        self.unknown[column] += int(missing.sum())
        return np.where(missing, 0, places).astype(ids.dtype)


def process_of_pid(recorder: ProcessRecording, processes: Sequence[ProcessRecording]) -> dict[int, int]:
    """`process.process_id` by pid, as seen from a recording process: that of the same host.

    Where a pid came again, the engine of the same recording that began nearest to the recorder is meant. A pid that the
    host does not have is that of the only engine elsewhere with it: ranks of one engine may be on several hosts.
    """

    def distance(other: ProcessRecording) -> tuple[bool, bool, int]:
        apart_ns = abs(other.clocks[0].realtime_ns - recorder.clocks[0].realtime_ns)
        return "engine" not in other.roles, other.recording != recorder.recording, apart_ns

    here = [(number, other) for number, other in enumerate(processes, 1) if _host(other) == _host(recorder)]
    found: dict[int, int] = {}
    for number, other in sorted(here, key=lambda item: distance(item[1])):
        found.setdefault(other.pid, number)
    elsewhere: dict[int, list[int]] = {}
    for number, other in enumerate(processes, 1):
        if "engine" in other.roles and other.pid not in found:
            elsewhere.setdefault(other.pid, []).append(number)
    return found | {pid: numbers[0] for pid, numbers in elsewhere.items() if len(numbers) == 1}


def _host(process: ProcessRecording) -> tuple[object, ...]:
    """Return what its pid is unique in. Containers may share a host's name; older recordings do not tell them apart."""
    return tuple(process.facts.get(name) for name in ("host", "boot_id", "pid_namespace"))
