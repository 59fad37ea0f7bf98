"""The step a thread works for, against looking at every range."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.ingest.gpu.enums import Attribution
from kvtrace.ingest.gpu.timeline import Range, timelines

FORWARD, STEP, AFTER = Attribution.nvtx_forward, Attribution.nvtx_step, Attribution.after_range


def at(ranges: list[Range], moment: int) -> tuple[int | None, Attribution | None]:
    (timeline,) = timelines(ranges)
    index = bisect_right(timeline.at_ns, moment)
    return timeline.states[index - 1] if index else (None, None)


def nested(start: int, end: int, depth: int, numbers: list[int]) -> list[Range]:
    """Ranges as push and pop make them: each splits what it covers."""
    found = []
    at_ns = start
    while numbers and at_ns < end:
        length, gap = numbers.pop() % (end - at_ns) + 1, numbers.pop() % 5 if numbers else 0
        found.append(Range(1, 1, at_ns, min(end, at_ns + length), FORWARD if depth else STEP, len(numbers)))
        if depth < 2 and numbers:
            found += nested(at_ns, min(end, at_ns + length), depth + 1, numbers)
        at_ns += length + gap
    return found


def innermost(ranges: list[Range], moment: int) -> tuple[int | None, Attribution | None]:
    around = [r for r in ranges if r.start_ns <= moment < r.end_ns]
    if around:
        best = max(around, key=lambda r: (r.start_ns, -r.end_ns))
        return best.step, best.method
    before = [r for r in ranges if r.end_ns <= moment]
    if not before:
        return None, None
    outermost = max(before, key=lambda r: (r.end_ns, -r.start_ns))
    return outermost.step, AFTER


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_the_innermost_range_around_a_moment_counts(numbers: list[int]) -> None:
    ranges = [r for r in nested(0, 100, 0, numbers) if r.end_ns > r.start_ns]
    unique = list({(r.start_ns, r.end_ns): r for r in ranges}.values())
    for moment in range(-1, 105):
        assert at(unique, moment) == innermost(unique, moment), (moment, unique)


def test_after_its_step_is_over_a_thread_works_for_none() -> None:
    ranges = [Range(1, 1, 100, 200, FORWARD, 1, 250), Range(1, 1, 400, 500, FORWARD, 2, 450)]
    found = [at(ranges, moment) for moment in (99, 100, 200, 249, 250, 399, 400, 600)]
    assert found == [
        (None, None),
        (1, FORWARD),
        (1, AFTER),
        (1, AFTER),
        (None, None),
        (None, None),
        (2, FORWARD),
        (2, AFTER),
    ]


def test_a_step_that_ends_while_the_next_one_runs_does_not_end_that() -> None:
    ranges = [Range(1, 1, 100, 200, FORWARD, 1, 350), Range(1, 1, 300, 400, FORWARD, 2, 500)]
    assert at(ranges, 360) == (2, FORWARD)
