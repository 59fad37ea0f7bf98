"""The contents of `kvtrace top`: sums over a follower's engines, and rows of its tables."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kvtrace.escape import inert
from kvtrace.events import Limit
from kvtrace.live.engine import COUNTERS
from kvtrace.live.follow import EngineFollower, Follower
from kvtrace.live.misses import Verdict
from kvtrace.live.requests import Seen, State, seen
from kvtrace.live.window import WINDOW_S, Durations, Ints


class Table(enum.Enum):
    """The table below the sums."""

    requests = "requests that wait or run"
    sessions = "sessions of them"
    finished = "requests that ended"


_STATES = {State.waiting: "wait", State.running: "run", State.preempted: "pre", State.finished: "end"}


class Sort(enum.Enum):
    """The column that rows are sorted by, largest first."""

    blocks = "blocks"
    age = "age"
    ttft = "ttft"
    output = "output"
    preemptions = "preemptions"


class Row(NamedTuple):
    """A request, or a session's requests. Durations are nanoseconds; None where not known, or not yet."""

    name: str
    session: str
    state: str
    requests: int
    age: int
    ttft: int | None
    blocks: int
    prompt: int
    cached: int
    output: int
    preemptions: int


@dataclass
class View:
    """Choices of the one who looks."""

    table: Table = Table.requests
    sort: Sort = Sort.blocks
    engine: int | None = None
    filter: str = ""


@dataclass
class Sums:
    """An engine's sums, or all engines'. Counts by name are those of the window and those since the beginning."""

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    findable_blocks: int = 0
    blocks: int = 0
    recent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    limits: Ints = field(default_factory=lambda: np.zeros(max(Limit) + 1, np.int64))
    misses: Ints = field(default_factory=lambda: np.zeros(len(Verdict), np.int64))
    durations: dict[str, Ints] = field(default_factory=dict)
    span_s: float = WINDOW_S
    dropped: int = 0


DURATIONS: dict[str, Callable[[EngineFollower], Durations]] = {
    "TTFT": lambda engine: engine.state.time_to_first_token,
    "ITL": lambda engine: engine.state.inter_token,
    "queue": lambda engine: engine.state.queue_time,
    "total": lambda engine: engine.state.end_to_end,
}


def chosen(follower: Follower, view: View) -> Sequence[EngineFollower]:
    """The engines that are looked at."""
    if view.engine is None:
        return follower.engines
    return follower.engines[view.engine : view.engine + 1]


def sums(engines: Sequence[EngineFollower]) -> Sums:
    """Sum up engines; percentiles are those of all their durations."""
    found = Sums()
    for engine in engines:
        state, now_ns = engine.state, engine.now_ns()
        if state.step is not None and engine.alive:
            found.running += max(int(state.step["running"]), 0)
            found.waiting += max(int(state.step["waiting"]), 0)
            found.used_blocks += max(int(state.step["used_blocks"]), 0)
            found.findable_blocks += max(int(state.step["cached_blocks"]), 0)
            found.blocks += state.blocks
        for name, count in state.recent(now_ns).items():
            found.recent[name] += count
            found.totals[name] += state.totals[name]
        found.limits = found.limits + state.recent_limits(now_ns)
        found.misses = found.misses + state.recent_misses(now_ns)
        for name, durations in DURATIONS.items():
            counts = durations(engine).recent(now_ns)
            found.durations[name] = found.durations.get(name, 0) + counts
        found.dropped += sum(engine.lost_records().values())
    return found


def rows(follower: Follower, view: View, most: int) -> list[Row]:
    """Rows of the chosen table, sorted; no more than `most`."""
    found = [row for engine in chosen(follower, view) for row in _rows(engine, view)]
    if view.filter:
        found = [row for row in found if view.filter in row.name or view.filter in row.session]
    if view.table is Table.sessions:
        found = _by_session(found)
    return sorted(found, key=lambda row: getattr(row, view.sort.value) or 0, reverse=True)[:most]


def _rows(engine: EngineFollower, view: View) -> Iterator[Row]:
    if view.table is Table.finished:
        since_ns = engine.now_ns() - WINDOW_S * 1_000_000_000
        found = [each for each in engine.state.recently_finished if each.ended_ns >= since_ns]
    else:
        found = [seen(row) for row in engine.state.requests.live()]
    yield from (_row(engine, each) for each in found)


def _row(engine: EngineFollower, each: Seen) -> Row:
    name = _name(engine, each.request)
    end_ns = each.ended_ns or engine.now_ns()
    ttft = each.first_token_ns - each.queued_ns if each.first_token_ns and each.queued_ns else None
    return Row(
        name,
        _name(engine, each.session) if each.session else "",
        _STATES[each.state],
        1,
        max(end_ns - each.queued_ns, 0) if each.queued_ns else 0,
        ttft,
        each.blocks,
        max(each.prompt_tokens, 0),
        each.cached_tokens,
        each.output_tokens,
        each.preemptions,
    )


def _name(engine: EngineFollower, number: int) -> str:
    return inert(engine.names[number]) if engine.names else f"#{number}"


def _by_session(found: Sequence[Row]) -> list[Row]:
    """One row a session: its requests' sums, and the longest of their times."""
    sessions: dict[str, list[Row]] = {}
    for row in found:
        sessions.setdefault(row.session, []).append(row)
    return [_sum_of(name, members) for name, members in sessions.items()]


def _sum_of(session: str, members: Sequence[Row]) -> Row:
    def total(column: str) -> Any:
        return sum(getattr(row, column) for row in members)

    running = sum(row.state == _STATES[State.running] for row in members)
    return Row(
        session or "(none)",
        "",
        f"{running} run",
        len(members),
        max(row.age for row in members),
        max((row.ttft for row in members if row.ttft is not None), default=None),
        *(total(column) for column in ("blocks", "prompt", "cached", "output", "preemptions")),
    )
