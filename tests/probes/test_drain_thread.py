"""A thread that drains a ring looks behind steps that have been enqueued, not too often, and when nothing happens."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.probes.device import drain_thread
from kvtrace.probes.device.drain_thread import DrainSchedule, show_name

NEVER = 3600.0


class Clock:
    """A thread that waits lets time pass; nobody else does."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.woken = False

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += 0 if self.woken else seconds
        return self.woken

    def set(self) -> None:
        self.woken = True

    def clear(self) -> None:
        self.woken = False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(drain_thread, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def schedule_of(clock: Clock, seconds: float, idle_seconds: float) -> DrainSchedule:
    made: Any = DrainSchedule(seconds, idle_seconds)
    made._wake = clock
    return made


def wakes(clock: Clock, schedule: DrainSchedule, steps: list[float]) -> list[float]:
    """Enqueue a step after each of some seconds. When the thread would have been woken."""
    found = []
    for seconds in steps:
        clock.now += seconds
        schedule.enqueued()
        if clock.woken:
            found.append(clock.now - 5000)
            clock.clear()
    return found


def test_it_looks_behind_a_step_as_often_as_asked_for(clock: Clock) -> None:
    assert wakes(clock, schedule_of(clock, 1.0, NEVER), [0.25] * 16) == [1.25, 2.25, 3.25]


def test_it_does_not_look_behind_the_first_steps_after_a_pause(clock: Clock) -> None:
    schedule = schedule_of(clock, 1.0, NEVER)
    assert wakes(clock, schedule, [0.25] * 6) == [1.25]
    assert wakes(clock, schedule, [3.5, 0.25, 0.25, 0.25, 0.25]) == [6.0]


def test_it_looks_when_nothing_has_been_enqueued_for_some_time(clock: Clock) -> None:
    schedule = schedule_of(clock, 1.0, 0.5)
    clock.now += 0.25
    schedule.enqueued()
    assert schedule.wait()
    assert clock.now == 5000.25 + 0.5
    clock.now += 0.25
    schedule.enqueued()  # while it looked
    clock.now += 0.25
    assert schedule.wait()
    assert clock.now == 5001.25 + 0.5


def test_it_ends_though_it_waits() -> None:
    schedule, looks = DrainSchedule(0, idle_seconds=NEVER), []
    thread = threading.Thread(target=lambda: looks.append(schedule.wait()))
    thread.start()
    schedule.end()
    thread.join(timeout=60)
    assert looks == [False]


def test_its_name_is_shown_by_the_system() -> None:
    shown: list[str] = []

    def run() -> None:
        show_name("kvtrace-drain-of-tiles")
        shown.append(Path("/proc/thread-self/comm").read_text())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert shown == ["kvtrace-drain-o\n"]
    assert Path("/proc/thread-self/comm").read_text() != shown[0]
