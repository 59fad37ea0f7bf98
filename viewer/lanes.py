"""A request's lane: the stretches of its life, put together from the turns the scheduler recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ORDER = ("queued", "schedule", "resume", "recomputed", "first_token", "preempt", "finish")
"""Turns that share a time happen in this order. `recomputed`: the last step that computed lost tokens again ended."""


class Turn(NamedTuple):
    """A change in a request's life: one of `ORDER`, when, and the scheduler's step, where there is one."""

    time_ns: int
    op: str
    step: int | None = None


class Segment(NamedTuple):
    """A stretch of a lane: one of `REQUEST_STATES`, from and to, and the step in which it began."""

    state: str
    start_ns: int
    end_ns: int
    step: int | None = None


def segments(turns: Iterable[Turn], last_ns: int) -> list[Segment]:
    """The stretches between a request's turns; what was going on when the recording ended lasts until `last_ns`.

    A first token does not end a recomputation, and one that comes back after its request was preempted does not end
    the preemption: under async scheduling results arrive late.
    """
    found: list[Segment] = []
    state, since, step, generating = "", 0, None, False
    for turn in sorted(turns, key=lambda turn: (turn.time_ns, ORDER.index(turn.op))):
        generating = generating or turn.op == "first_token"
        after = _after(state, turn.op, generating)
        if after == state:
            continue
        if state and turn.time_ns > since:
            found.append(Segment(state, since, turn.time_ns, step))
        state, since, step = after, turn.time_ns, turn.step
    if state and last_ns > since:
        found.append(Segment(state, since, last_ns, step))
    return found


def _after(state: str, op: str, generating: bool) -> str:
    """The state after a turn; empty once the request has ended."""
    working = "decode" if generating else "prefill"
    match op:
        case "queued":
            return state or "queued"
        case "schedule":
            return "prefill"
        case "preempt":
            return "preempted"
        case "resume":
            return "resumed"
        case "recomputed":
            return working if state == "resumed" else state
        case "first_token":
            return state if state in {"preempted", "resumed"} else "decode"
    return ""
