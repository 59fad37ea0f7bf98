"""Steps of the realtime clock are told from what NTP does to it all the time."""

from __future__ import annotations

from kvtrace.format.reader import Clock
from kvtrace.ingest.clock import Reading, steps

S = 1_000_000_000


def readings(*at: tuple[float, float]) -> list[Reading]:
    """Of (monotonic seconds, seconds the realtime clock is ahead of the first reading's offset)."""
    return [Reading(1, Clock(int(t * S), int((t + ahead) * S), 0), 0, int(ahead * S)) for t, ahead in at]


def test_a_step_is_found_with_its_size_and_the_reading_after_it() -> None:
    before, after, back = found = readings((0, 0), (1, 3600), (2, -0.5))
    assert steps(found) == [(after, 3600 * S), (back, -int(3600.5 * S))]
    assert steps([before]) == []


def test_a_clock_that_is_set_right_smoothly_is_not_stepped() -> None:
    assert steps(readings((0, 0), (3600, 1.8), (7200, 3.6), (7200.001, 3.605))) == []
