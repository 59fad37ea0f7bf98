"""Requests of one internal id in several engines: which engine's request a process means.

vLLM makes internal ids unique with eight random digits, unless VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set: then the
halves of a prefill/decode pair, or two engines of one client's ids, have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtrace.events import FORWARD, REQUEST_QUEUED
from kvtrace.format.reader import ProcessRecording, Segment
from kvtrace.ingest.capture import whole_records


class Owners:
    """Tells requests of one internal id apart by the engine that queued them.

    `unclear` counts, by process number, ids that a process used and of which several engines may be meant; `repeated`
    counts requests that an engine queued under an id it had used before: they share a row of table `request`.
    """

    def __init__(self, processes: Sequence[ProcessRecording], pids: Sequence[dict[int, int]]) -> None:
        self.unclear: Counter[int] = Counter()
        self.repeated: Counter[int] = Counter()
        self._processes = processes
        self._engine_of = [
            _engine_of(number, *pair) for number, pair in enumerate(zip(processes, pids, strict=True), 1)
        ]
        self._shared = self._find_shared()

    def owner(self, number: int, internal_id: str) -> int:
        """Return the owner to give to `RequestKeys` for an id in the records of the process with this number."""
        engines = self._shared.get(internal_id)
        if engines is None:
            return 0
        mine = self._engine_of[number - 1]
        if mine in engines:
            return mine
        recorder = self._processes[number - 1]
        here = [each for each in engines if self._processes[each - 1].recording == recorder.recording]
        children = [each for each in here if self._processes[each - 1].facts.get("ppid") == recorder.pid]
        for found in (here, children):
            if len(found) == 1:
                return found[0]
        self.unclear[number] += 1
        return -recorder.recording

    def warnings(self) -> list[str]:
        """Return the ids that could not be told apart."""
        names = [process.directory.name for process in self._processes]
        return [
            f"{names[number - 1]}: {count} of its request ids are those of several engines; it is not known which one "
            "is meant, so they are requests of their own"
            for number, count in self.unclear.items()
        ] + [
            f"{names[number - 1]}: {count} requests came under an internal id that the engine had used before; they "
            "share a row of table request"
            for number, count in self.repeated.items()
        ]

    def _find_shared(self) -> dict[str, list[int]]:
        engines: dict[str, list[int]] = {}
        for number, process in enumerate(self._processes, 1):
            segments = process.segments().get(REQUEST_QUEUED.name, [])
            if not segments:
                continue
            strings = process.strings()
            queued = _values(segments, "request")
            texts = Counter(strings[each] for ids in queued for each in ids.tolist() if each in strings)
            if again := texts.total() - len(texts):
                self.repeated[number] = again
            for text in texts:
                engines.setdefault(text, []).append(number)
        return {text: numbers for text, numbers in engines.items() if len(numbers) > 1}


def _engine_of(number: int, process: ProcessRecording, pids: dict[int, int]) -> int:
    """The engine of a process: itself, or the one its forward passes were scheduled by; 0 for none."""
    segments = process.segments()
    if segments.get(REQUEST_QUEUED.name):
        return number
    for engines in _values(segments.get(FORWARD.name, []), "engine_id"):
        return pids.get(int(engines[0]), 0)
    return 0


def _values(segments: Iterable[Segment], field: str) -> Iterator[npt.NDArray[Any]]:
    """A field of segments' whole records, batch by batch; nothing of a segment that does not declare it."""
    for segment in segments:
        if any(declared.name == field for declared in segment.fields):
            for records in whole_records(segment):
                yield np.asarray(records[field])
