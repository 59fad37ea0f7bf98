"""The event that others count from is one whose time is known well, if there is one."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from kvtrace.probes.device import timer
from kvtrace.probes.device.timer import EVENT_WITHIN_NS, GpuTimer

STREAM: Any = SimpleNamespace(cuda_stream=1, synchronize=lambda: None)
GOOD, BAD = 3_000, 2 * EVENT_WITHIN_NS + 1_000
BEHIND_NS = 10**12  # the GPU's timer is behind the host's clock


class Gpu:
    """Stands for it: answers from a thread, and comes to the two events around a reading `aparts` one after another."""

    def __init__(self, aparts: list[int]) -> None:
        self.handles = [11, 12, 13, 14]
        self.aparts = aparts
        self.recorded: list[int] = []
        self.asked, self.answers = numpy.zeros(1, numpy.int64), numpy.zeros(32, numpy.int64)
        self.notes: list[dict[str, Any]] = []

    def answer(self, stream: int) -> None:
        def run() -> None:
            until = time.monotonic() + 5
            for index in range(len(self.answers)):
                while self.asked[0] <= index and time.monotonic() < until:
                    pass
                self.answers[index] = time.monotonic_ns() - BEHIND_NS

        threading.Thread(target=run, daemon=True).start()

    def record(self, index: int, stream: int) -> None:
        self.recorded.append(index)

    def elapsed_ns(self, since: int, first: int, count: int) -> list[int]:
        return [self.aparts.pop(0) if len(self.aparts) > 1 else self.aparts[0]]

    def note(self, kind: str, **facts: Any) -> None:
        self.notes.append(facts)


def timer_of(gpu: Gpu) -> GpuTimer:
    made: Any = GpuTimer.__new__(GpuTimer)
    made.offset_ns = made.event = made.event_ns = made._event_uncertainty_ns = made._turn = 0
    made._due = made._event_due = 0.0
    made._recorder = made._events = gpu
    made._asked, made._answers = (SimpleNamespace(numpy=lambda a=array: a) for array in (gpu.asked, gpu.answers))
    made._between = SimpleNamespace(item=lambda: 7_000_000)
    made._answer, made._time = gpu.answer, lambda stream: None
    return made


@pytest.fixture(autouse=True)
def long_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that answers needs Python, too."""
    monkeypatch.setattr(timer, "_ANSWERS_WITHIN_NS", 100_000_000)
    monkeypatch.setattr(timer, "_STARTS_WITHIN_NS", 2_000_000_000)
    monkeypatch.setattr(timer, "CALIBRATE_SECONDS", 0.0)


def test_the_first_event_is_one_that_is_known_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "FIRST_EVENT_SECONDS", 60.0)
    gpu = Gpu([BAD, BAD, GOOD])
    kept = timer_of(gpu)
    kept.keep(STREAM)
    assert [note["event_uncertainty_ns"] for note in gpu.notes] == [GOOD // 2]
    assert (kept.event, kept.event_ns) == (11, 7_000_000 - GOOD // 2)
    assert abs(kept.offset_ns - BEHIND_NS) <= gpu.notes[-1]["uncertainty_ns"]
    # A worse one does not take its place, nor the place of its event in the row.
    gpu.aparts, gpu.recorded = [BAD], []
    kept.keep(STREAM)
    assert (kept.event, gpu.recorded) == (11, [2, 3])
    assert [note["event_uncertainty_ns"] for note in gpu.notes] == 2 * [GOOD // 2]


def test_a_first_event_that_is_known_badly_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "FIRST_EVENT_SECONDS", 0.01)
    gpu = Gpu([BAD])
    kept = timer_of(gpu)
    kept.keep(STREAM)
    assert [note["event_uncertainty_ns"] for note in gpu.notes] == [BAD // 2]
    gpu.aparts = [GOOD]
    kept.keep(STREAM)
    assert [note["event_uncertainty_ns"] for note in gpu.notes] == [BAD // 2, GOOD // 2]
    assert (kept.event, kept._event_uncertainty_ns) == (13, GOOD // 2)
