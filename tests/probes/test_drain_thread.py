"""A thread that drains a ring looks when a step has been enqueued, not too often, and when nothing happens."""

from __future__ import annotations

import threading
import time

from kvtrace.probes.device.drain_thread import DrainSchedule

NEVER = 3600.0


def test_it_looks_when_a_step_has_been_enqueued() -> None:
    schedule = DrainSchedule(0, idle_seconds=NEVER)
    for _ in range(3):
        schedule.enqueued()
        assert schedule.wait()


def test_it_does_not_look_more_often_than_asked_for() -> None:
    schedule, idle = DrainSchedule(NEVER, idle_seconds=0.05), 0.05
    schedule.enqueued()
    assert schedule.wait()
    schedule.enqueued()
    start = time.monotonic()
    assert schedule.wait()  # as if nothing had been enqueued
    assert time.monotonic() - start >= idle


def test_it_ends_though_it_waits() -> None:
    schedule, looks = DrainSchedule(0, idle_seconds=NEVER), []
    thread = threading.Thread(target=lambda: looks.append(schedule.wait()))
    thread.start()
    schedule.end()
    thread.join(timeout=60)
    assert looks == [False]
