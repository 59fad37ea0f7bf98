from __future__ import annotations

import pytest

from kvtrace.viewer.lanes import Turn, segments


def lane(*turns: tuple[int, str], last_ns: int = 100) -> list[tuple[str, int, int]]:
    return [segment[:3] for segment in segments([Turn(time_ns, op) for time_ns, op in turns], last_ns)]


def test_a_request_waits_computes_its_prompt_and_generates() -> None:
    assert lane((0, "queued"), (10, "schedule"), (30, "first_token"), (60, "finish")) == [
        ("queued", 0, 10),
        ("prefill", 10, 30),
        ("decode", 30, 60),
    ]


def test_a_preempted_request_computes_again_before_it_generates() -> None:
    turns = (0, "queued"), (1, "schedule"), (5, "first_token"), (8, "preempt"), (20, "resume"), (25, "recomputed")
    assert lane(*turns, (40, "finish")) == [
        ("queued", 0, 1),
        ("prefill", 1, 5),
        ("decode", 5, 8),
        ("preempted", 8, 20),
        ("resumed", 20, 25),
        ("decode", 25, 40),
    ]


def test_preempted_before_its_first_token_it_goes_on_with_its_prompt() -> None:
    found = lane(
        (0, "queued"), (1, "schedule"), (8, "preempt"), (20, "resume"), (25, "recomputed"), (30, "first_token")
    )
    assert [state for state, *_ in found] == ["queued", "prefill", "preempted", "resumed", "prefill", "decode"]


def test_a_first_token_that_comes_late_does_not_end_a_preemption() -> None:
    # GIVEN async scheduling, which returns a step's tokens after the request was preempted
    found = lane((0, "queued"), (1, "schedule"), (8, "preempt"), (9, "first_token"), (20, "resume"), (25, "recomputed"))
    # THEN the token counts, but the lane stays preempted until it is admitted again
    assert found[2:] == [("preempted", 8, 20), ("resumed", 20, 25), ("decode", 25, 100)]


def test_without_the_end_of_its_recomputation_a_lane_stays_resumed() -> None:
    assert lane((0, "queued"), (1, "schedule"), (8, "preempt"), (20, "resume"))[-1] == ("resumed", 20, 100)


@pytest.mark.parametrize(("op", "state"), [("queued", "queued"), ("schedule", "prefill"), ("first_token", "decode")])
def test_what_goes_on_when_the_recording_ends_lasts_until_then(op: str, state: str) -> None:
    assert lane((50, op)) == [(state, 50, 100)]


def test_an_aborted_request_only_waited() -> None:
    assert lane((0, "queued"), (10, "finish")) == [("queued", 0, 10)]


def test_turns_at_one_time_happen_in_the_schedulers_order() -> None:
    assert lane((10, "finish"), (10, "first_token"), (0, "queued"), (5, "schedule")) == [
        ("queued", 0, 5),
        ("prefill", 5, 10),
    ]


def test_a_stretch_tells_the_step_it_began_in() -> None:
    turns = [Turn(0, "queued"), Turn(5, "schedule", 7), Turn(8, "preempt", 9), Turn(20, "resume", 12)]
    assert [(segment.state, segment.step) for segment in segments(turns, 100)] == [
        ("queued", None),
        ("prefill", 7),
        ("preempted", 9),
        ("resumed", 12),
    ]
