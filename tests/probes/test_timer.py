"""Host times of the GPU's timer follow its drift. The event that others count from is one whose time is known well."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.probes.device import timer
from kvtrace.probes.device.timer import DRIFT_SECONDS, EVENT_WITHIN_NS, GpuTimer, HostClock

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
    made.clock = HostClock()
    made.event = made.event_ns = made._event_uncertainty_ns = made._turn = 0
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
    assert abs(kept.clock.offset_ns - BEHIND_NS) <= gpu.notes[-1]["uncertainty_ns"]
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


SECOND = 1_000_000_000
OFF_NS = 800  # half the round trip of a reading, as on H100s


@given(
    st.floats(-500e-6, 500e-6),
    st.integers(-(1 << 61), 1 << 61).filter(bool),
    st.lists(st.tuples(st.floats(DRIFT_SECONDS, 1.5), st.integers(-OFF_NS, OFF_NS)), min_size=2, max_size=8),
)
def test_host_times_follow_the_drift_between_calibrations(
    drift: float, offset_ns: int, readings: list[tuple[float, int]]
) -> None:
    """By at most what two readings, as far apart as these, leave open."""

    def host_ns(gpu_ns: int) -> int:
        return gpu_ns + offset_ns + round((gpu_ns - start_ns) * drift)

    clock, start_ns = HostClock(), 1_700_000_000 * SECOND
    gpu_ns = start_ns
    for seconds, off_ns in readings:
        gpu_ns += round(seconds * SECOND)
        clock.calibrate(gpu_ns, host_ns(gpu_ns) - gpu_ns + off_ns)
    asked = numpy.array([[gpu_ns - SECOND // 4, gpu_ns], [gpu_ns + 7, gpu_ns + SECOND]])
    found = clock.host_ns(asked)
    known = OFF_NS + 2 + 2 * OFF_NS * numpy.abs(asked - gpu_ns) / (readings[-1][0] * SECOND)
    truth = numpy.array([[host_ns(int(time)) for time in row] for row in asked])
    assert found.dtype == numpy.int64
    assert (numpy.abs(found - truth) <= known + 1).all()


def test_one_calibration_tells_no_drift_and_a_leap_is_none() -> None:
    clock = HostClock()
    assert (clock.calibrate(SECOND, 500), clock.drift) == (0, None)
    assert (clock.calibrate(SECOND + 1_000, 900), clock.drift) == (400, None)  # too soon
    assert clock.host_ns(numpy.array([5 * SECOND])).tolist() == [5 * SECOND + 900]
    assert (clock.calibrate(3 * SECOND, 2_500), clock.drift) == (1_600, 1e-6)
    clock.calibrate(4 * SECOND, SECOND)  # the host's clock was set
    assert (clock.drift, clock.offset_ns) == (0.0, SECOND)
