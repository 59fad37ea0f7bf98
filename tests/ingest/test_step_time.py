"""View `step_time`: engines whose large steps take known times, and steps written by hand."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from .traces import Events

LAUNCH_NS, COMPUTE_NS = 500, 7_000


class Step(NamedTuple):
    """When a step was scheduled and when its results were processed, and the tokens it scheduled."""

    start_ns: int
    end_ns: int
    decode: int | None
    resumed: int | None = 0


Row = tuple[int, int, int, int | None, int]
"""engine_id, step, tokens, usual_ns, added_ns"""


def recorded(*engines: list[Step]) -> Events:
    """A trace of the steps; engines and their steps are numbered from 1."""
    trace = Events()
    prefill = {f"{phase}_{what}": 0 for phase in ("prefill", "chunked_prefill") for what in ("requests", "tokens")}
    for engine, steps in enumerate(engines, 1):
        for number, step in enumerate(steps, 1):
            tokens = prefill | {"decode_tokens": step.decode, "resumed_tokens": step.resumed}
            trace.add("step_schedule", engine_id=engine, step=number, start_ns=step.start_ns, **tokens)
            trace.add("step_update", engine_id=engine, step=number, end_ns=step.end_ns)
    return trace


def added(*engines: list[Step]) -> list[Row]:
    """The view's rows of steps with other tokens."""
    rows = recorded(*engines).rows(
        "SELECT engine_id, step, tokens, usual_ns, added_ns FROM step_time ORDER BY engine_id, step"
    )
    return [row for row in rows if row[4] is not None]


def some_large(seed: int) -> dict[int, tuple[int, int]]:
    """A tenth of the steps of a run, with their times to launch and to compute."""
    dice = random.Random(seed)
    return {
        number: (dice.randrange(1_000, 40_000), dice.randrange(1_000, 40_000))
        for number in range(20, 180)
        if dice.random() < 0.1
    }


def run(large: dict[int, tuple[int, int]], *, overlapping: bool) -> list[Step]:
    """200 steps on one processor and one GPU; `large` ones take other times to launch and to compute."""
    host = gpu = 0
    starts, ends = [], []
    for number in range(200):
        launch, compute = large.get(number, (LAUNCH_NS, COMPUTE_NS))
        starts.append(host)
        host += launch
        before, gpu = gpu, max(gpu, host) + compute
        if not overlapping:
            host = gpu
            ends.append(host)
        elif number:  # the next step is launched before this one's results are there
            host = max(host, before)
            ends.append(host)
    if overlapping:
        ends.append(gpu)
    return [
        Step(start, end, 5, 300 if number in large else 0)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


@pytest.mark.parametrize("overlapping", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_large_steps_added_what_a_run_of_small_ones_takes_less(seed: int, overlapping: bool) -> None:
    large = some_large(seed)
    steps = run(large, overlapping=overlapping)

    rows = added(steps)

    usual = COMPUTE_NS if overlapping else LAUNCH_NS + COMPUTE_NS
    assert [row[:4] for row in rows] == [(1, number + 1, 300, usual) for number in large]
    longer = steps[-1].end_ns - run({}, overlapping=overlapping)[-1].end_ns
    assert sum(row[4] for row in rows) == longer
    assert any(number + 1 in large for number in large), "two in a row are meant to be among them"


@pytest.mark.parametrize("seed", [3, 4])
def test_own_times_add_up_to_the_wall_time_and_leave_decode_steps_theirs(seed: int) -> None:
    large = some_large(seed)
    steps = run(large, overlapping=True)

    rows = recorded(steps).rows("SELECT step, own_ns, interval_ns FROM step_time JOIN step USING (engine_id, step)")

    assert sum(own for _, own, _ in rows) == sum(interval for _, _, interval in rows) == steps[-1].end_ns
    decode = [own for step, own, _ in rows if step > 1 and step - 1 not in large]
    assert decode == [COMPUTE_NS] * (199 - len(large))


def test_the_launch_is_in_the_step_before_only_if_that_overlaps_and_has_decode_tokens_only() -> None:
    usual = [Step(0, 100, 1), Step(50, 200, 1), Step(150, 300, 1)]

    overlaps = [*usual, Step(250, 450, 1), Step(310, 500, 1, 8)]
    follows = [*usual, Step(250, 450, 1), Step(450, 500, 1, 8)]
    behind_large = [*usual, Step(300, 450, 1, 4), Step(310, 500, 1, 8)]
    behind_empty = [*usual, Step(250, 450, 0), Step(310, 500, 1, 8)]

    assert added(overlaps, follows, behind_large, behind_empty) == [
        (1, 5, 8, 100, (50 - 100) + (150 - 100)),
        (2, 5, 8, 100, 50 - 100),
        (3, 4, 4, 100, 150 - 100),
        (3, 5, 8, 100, 50 - 100),
        (4, 5, 8, 100, (50 - 100) + 150),
    ]


def test_without_a_usual_step_only_the_steps_own_time_counts() -> None:
    assert added([Step(0, 100, 1), Step(50, 180, 1, 8)]) == [(1, 2, 8, None, 80)]


def test_a_usual_step_is_among_the_fifty_with_tokens_on_either_side() -> None:
    many = [Step(0, 100, 1), Step(50, 200, 1), *(Step(200, 200 + number, 0, 7) for number in range(50))]
    assert [row[3] for row in added(many)] == [*[100] * 49, None]
    empty = [Step(0, 100, 1), Step(50, 200, 1), *[Step(200, 200, 0)] * 60, Step(200, 280, 0, 7)]
    assert added(empty) == [(1, 63, 7, 100, 80 - 100)]


def test_a_launch_goes_to_no_other_step_than_the_next() -> None:
    with_an_empty_step_between = [Step(0, 100, 1), Step(50, 200, 1), Step(150, 300, 0), Step(250, 500, 1, 8)]

    rows = recorded(with_an_empty_step_between).rows("SELECT step, launch_ns, own_ns FROM step_time ORDER BY step")

    assert rows == [(1, 0, 100), (2, 0, 100), (4, 100, 300)]


def test_steps_whose_phases_are_unknown_keep_their_interval() -> None:
    trace = Events()
    for step in (1, 2):
        known = {"budget_tokens": 100, "budget_left_tokens": 60}
        trace.add("step_schedule", engine_id=1, step=step, start_ns=100 * step, **known)
        trace.add("step_update", engine_id=1, step=step, end_ns=100 * step + 100 + step)
    assert trace.rows("SELECT step, tokens, usual_ns, launch_ns, own_ns, added_ns FROM step_time ORDER BY step") == [
        (1, None, None, 0, 101, None),
        (2, None, None, 0, 101, None),
    ]


@pytest.mark.parametrize("phase", ["prefill", "chunked_prefill", "decode", "resumed"])
@pytest.mark.parametrize("far", [-(2**31) + 1, 2**31 - 1])
def test_numbers_that_only_a_damaged_recording_has_are_no_error(phase: str, far: int) -> None:
    trace = recorded([Step(0, 100, 1), Step(50, 200, 1, 8), Step(150, 300, 1)])
    trace.rows("UPDATE step_schedule SET decode_tokens = -2, prefill_tokens = 2147483647 WHERE step = 1 RETURNING 1")
    trace.rows(f"UPDATE step_schedule SET {phase}_tokens = {far}, {phase}_requests = {far} WHERE step > 1 RETURNING 1")
    trace.rows(f"UPDATE step_schedule SET budget_tokens = {far}, budget_left_tokens = {-far} RETURNING 1")
    assert len(trace.rows("FROM step LEFT JOIN step_time USING (engine_id, step)")) == 3
