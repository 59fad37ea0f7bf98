"""View `request_state`: lives told as turns, and the stretches they make."""

from __future__ import annotations

from itertools import count

import pytest

from kvtrace.queries import Trace

from .conftest import MakeTrace, values

Turn = tuple[int, str] | tuple[int, str, int]


def life(make_trace: MakeTrace, *turns: Turn) -> list[tuple[str, int, int | None, int | None]]:
    """The stretches of one request: state, from, to, and the step in which it began."""
    steps = count(100)
    events, queued = [], None
    again = []
    for time_ns, op, *step in turns:
        if op == "queued":
            queued = time_ns
        elif op == "recomputed":
            again.append((1, next(steps), time_ns))
        else:
            events.append((1, time_ns, step[0] if step else None, 1, op))
    resumed = max((step or 0 for _, _, step, _, op in events if op == "resume"), default=0)
    sql = f"INSERT INTO request BY NAME SELECT 1 AS request, 1 AS engine_id, {queued or 'NULL'}::BIGINT AS queued_ns;"
    if events:
        sql += f"INSERT INTO request_event (engine_id, time_ns, step, request, op) VALUES {values(events)};"
    for _, step, end_ns in again:
        sql += f"INSERT INTO step_update (engine_id, step, end_ns) VALUES (1, {step}, {end_ns});"
        sql += f"INSERT INTO step_request (engine_id, step, request, phase) VALUES (1, {step}, 1, 'resumed');"
    if not again and any(op == "resume" for *_, op in events):
        # what it lost is being computed when the recording ends
        sql += f"INSERT INTO step_request (engine_id, step, request, phase) VALUES (1, {resumed}, 1, 'resumed');"
    with Trace(make_trace(sql)) as trace:
        found = trace.sql("SELECT state, start_ns, end_ns, step FROM request_state ORDER BY start_ns", "arrow")
    return [tuple(row.values()) for row in found.to_pylist()]


def states(make_trace: MakeTrace, *turns: Turn) -> list[tuple[str, int, int | None]]:
    return [row[:3] for row in life(make_trace, *turns)]


def test_a_request_waits_computes_its_prompt_and_generates(make_trace: MakeTrace) -> None:
    assert states(make_trace, (1, "queued"), (10, "schedule"), (30, "first_token"), (60, "finish")) == [
        ("queued", 1, 10),
        ("prefill", 10, 30),
        ("decode", 30, 60),
    ]


def test_a_preempted_request_computes_again_before_it_generates(make_trace: MakeTrace) -> None:
    found = states(
        make_trace, (1, "queued"), (2, "schedule"), (5, "first_token"), (8, "preempt"), (20, "resume", 9),
        (25, "recomputed"), (40, "finish"),
    )  # fmt: skip
    assert found == [
        ("queued", 1, 2),
        ("prefill", 2, 5),
        ("decode", 5, 8),
        ("preempted", 8, 20),
        ("resumed", 20, 25),
        ("decode", 25, 40),
    ]


def test_preempted_before_its_first_token_it_goes_on_with_its_prompt(make_trace: MakeTrace) -> None:
    found = states(
        make_trace, (1, "queued"), (2, "schedule"), (8, "preempt"), (20, "resume", 9), (25, "recomputed"),
        (30, "first_token"),
    )  # fmt: skip
    assert [state for state, *_ in found] == ["queued", "prefill", "preempted", "resumed", "prefill", "decode"]


def test_a_first_token_that_comes_late_does_not_end_a_preemption(make_trace: MakeTrace) -> None:
    # GIVEN async scheduling, which returns a step's tokens after the request was preempted
    found = states(
        make_trace, (1, "queued"), (2, "schedule"), (8, "preempt"), (9, "first_token"), (20, "resume", 9),
        (25, "recomputed"),
    )  # fmt: skip
    # THEN the token counts, but the request stays preempted until it is admitted again
    assert found[2:] == [("preempted", 8, 20), ("resumed", 20, 25), ("decode", 25, None)]


def test_without_the_end_of_its_recomputation_it_stays_resumed(make_trace: MakeTrace) -> None:
    found = states(make_trace, (1, "queued"), (2, "schedule"), (8, "preempt"), (20, "resume", 9))
    assert found[-1] == ("resumed", 20, None)


@pytest.mark.parametrize(("op", "state"), [("queued", "queued"), ("schedule", "prefill"), ("first_token", "decode")])
def test_what_goes_on_when_the_recording_ends_has_no_end(make_trace: MakeTrace, op: str, state: str) -> None:
    assert states(make_trace, (50, op)) == [(state, 50, None)]


def test_an_aborted_request_only_waited(make_trace: MakeTrace) -> None:
    assert states(make_trace, (1, "queued"), (10, "finish")) == [("queued", 1, 10)]


def test_turns_at_one_time_happen_in_the_schedulers_order(make_trace: MakeTrace) -> None:
    assert states(make_trace, (10, "finish"), (10, "first_token"), (1, "queued"), (5, "schedule")) == [
        ("queued", 1, 5),
        ("prefill", 5, 10),
    ]


def test_a_stretch_tells_the_step_it_began_in(make_trace: MakeTrace) -> None:
    found = life(make_trace, (1, "queued"), (5, "schedule", 7), (8, "preempt", 9), (20, "resume", 12))
    assert [(state, step) for state, _, _, step in found] == [
        ("queued", None),
        ("prefill", 7),
        ("preempted", 9),
        ("resumed", 12),
    ]


@pytest.mark.parametrize(
    ("phase", "turns", "expected"),
    [
        ("decode", "", [("queued", 1, 40), ("decode", 40, None)]),
        ("chunked_prefill", "", [("queued", 1, 40), ("prefill", 40, None)]),
        ("decode", "(1, 60, 9, 1, 'preempt')", [("queued", 1, 40), ("decode", 40, 60), ("preempted", 60, None)]),
        # A turn before its first share tells what it was: it was preempted, and computes again.
        ("resumed", "(1, 20, 1, 1, 'preempt'), (1, 41, 7, 1, 'resume')",
         [("queued", 1, 20), ("preempted", 20, 41), ("resumed", 41, None)]),
    ],
)  # fmt: skip
def test_a_request_that_runs_as_the_trace_begins_waits_for_nothing(
    make_trace: MakeTrace, phase: str, turns: str, expected: list[tuple[str, int, int | None]]
) -> None:
    """GIVEN a request whose admission is not in the trace THEN the first step that computes for it admits it."""
    sql = f"""
        INSERT INTO request BY NAME SELECT 1 AS request, 1 AS engine_id, 1 AS queued_ns;
        INSERT INTO step_schedule (engine_id, step, start_ns, scheduled_ns) VALUES (1, 7, 40, 45), (1, 8, 50, 55);
        INSERT INTO step_request (engine_id, step, request, phase) VALUES (1, 7, 1, '{phase}'), (1, 8, 1, 'decode');
    """
    if turns:
        sql += f"INSERT INTO request_event (engine_id, time_ns, step, request, op) VALUES {turns};"
    with Trace(make_trace(sql)) as trace:
        found = trace.sql("SELECT state, start_ns, end_ns FROM request_state ORDER BY start_ns", "arrow")
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
