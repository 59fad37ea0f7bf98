"""How a recording's clients sent their requests, told from times alone, and replays that send them the same way."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kvtrace as package
from kvtrace.lab.replay import timing
from kvtrace.lab.replay.loops import Loop, clients_of, loop_of
from kvtrace.lab.replay.recording import RecordedRequest, Recording, read_recording
from kvtrace.lab.replay.run import Job, Replayed, replay
from kvtrace.lab.replay.settings import recorded_settings

MS = 1_000_000
STEP_NS = 10 * MS
"""Requests end with steps, several of them with one."""
CLIENTS = st.integers(1, 64)
DURATIONS_MS = st.tuples(st.integers(150, 2000), st.integers(1, 8))  # shortest, and the longest over it


@pytest.fixture(scope="module")
def nothing(demo: Path) -> Recording:
    return replace(read_recording(demo), requests=[], steps=[])


def recording(nothing: Recording, times: Iterable[tuple[int, int]]) -> Recording:
    """A recording of requests that came and ended then, ns."""
    requests = [
        RecordedRequest(
            number, str(number), None, None, None, None, 0, come, come, 10, 10, 10, "length", end,
        )
        for number, (come, end) in enumerate(sorted(times), 1)
    ]  # fmt: skip
    return replace(nothing, requests=requests)


def duration_ns(dice: random.Random, lasts: tuple[int, int]) -> int:
    return dice.randint(lasts[0], lasts[0] * lasts[1]) * MS


def end_of(come: int, lasts_ns: int) -> int:
    return -(-(come + lasts_ns) // STEP_NS) * STEP_NS


def waiting(dice: random.Random, clients: int, lasts: tuple[int, int], requests: int) -> list[tuple[int, int]]:
    """Clients that ask again some milliseconds after their answer."""
    free = [dice.randrange(3 * MS) for _ in range(clients)]
    times = []
    for _ in range(requests):
        come = heapq.heappop(free)
        end = end_of(come, duration_ns(dice, lasts))
        heapq.heappush(free, end + dice.randint(1 * MS, 6 * MS))
        times.append((come, end))
    return times


@given(seed=st.integers(0, 1 << 30), clients=CLIENTS, lasts=DURATIONS_MS)
def test_clients_that_wait_for_their_answers_are_told(
    nothing: Recording, seed: int, clients: int, lasts: tuple[int, int]
) -> None:
    dice = random.Random(seed)
    made = recording(nothing, waiting(dice, clients, lasts, 3 * clients + 20))
    # Where all answers take equally long, they are batches as well.
    assert loop_of(made) in (("concurrency",) if lasts[1] > 1 else ("concurrency", "batch"))
    assert [each.at_once for each in clients_of(made)] == [clients]


@given(seed=st.integers(0, 1 << 30), several=st.lists(CLIENTS, min_size=2, max_size=4), lasts=DURATIONS_MS)
def test_benchmarks_one_after_the_other_each_have_their_clients(
    nothing: Recording, seed: int, several: list[int], lasts: tuple[int, int]
) -> None:
    assume(lasts[1] > 1)
    dice = random.Random(seed)
    times: list[tuple[int, int]] = []
    for clients in several:
        pause_ns = max((end for _, end in times), default=0) + dice.randint(600, 9000) * MS
        came = waiting(dice, clients, lasts, 3 * clients + 20)
        times += [(pause_ns + come, pause_ns + end) for come, end in came]
    made = recording(nothing, times)
    assert loop_of(made) == "concurrency"
    assert [each.at_once for each in clients_of(made)] == several


@given(seed=st.integers(0, 1 << 30), at_once=st.floats(0.2, 80), lasts=DURATIONS_MS, regular=st.booleans())
def test_clients_that_do_not_wait_are_not_taken_for_such(
    nothing: Recording, seed: int, at_once: float, lasts: tuple[int, int], regular: bool
) -> None:
    """At random moments or at a constant rate, with any number of requests at a time in the mean."""
    assume(not regular or lasts[1] > 1)  # at a constant rate, what always takes equally long looks the same
    dice = random.Random(seed)
    apart_ns = lasts[0] * (1 + lasts[1]) / 2 / at_once * MS
    gaps = [apart_ns if regular else dice.expovariate(1 / apart_ns) for _ in range(300)]
    times = [(round(come), end_of(round(come), duration_ns(dice, lasts))) for come in accumulate(gaps)]
    assert loop_of(recording(nothing, times)) == "open"


@given(seed=st.integers(0, 1 << 30), lasts=DURATIONS_MS, seats=st.integers(1, 32))
def test_a_queue_that_grows_is_no_client_that_waits(
    nothing: Recording, seed: int, lasts: tuple[int, int], seats: int
) -> None:
    """More requests come than an engine serves: as many run all along, and each begins when another ends."""
    dice = random.Random(seed)
    seated = [0] * seats
    times, come = [], 0
    for _ in range(300):
        come += round(dice.expovariate(1.3 * seats / (lasts[0] * (1 + lasts[1]) / 2 * MS)))
        end = end_of(max(come, heapq.heappop(seated)), duration_ns(dice, lasts))
        heapq.heappush(seated, end)
        times.append((come, end))
    assert loop_of(recording(nothing, times)) == "open"


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_replay_has_as_many_requests_at_a_time(demo: Path, tmp_path: Path, factor: float) -> None:
    """The demo's requests, sent by two clients and then, behind a pause, by five."""
    recorded, dice = read_recording(demo), random.Random(1)
    first = waiting(dice, 2, (100, 3), 12)
    pause_ns = max(end for _, end in first) + 2_000 * MS
    times = first + [(pause_ns + a, pause_ns + b) for a, b in waiting(dice, 5, (100, 3), len(recorded.requests) - 12)]
    start_ns = recorded.requests[0].arrival_ns
    requests = [
        replace(
            request, arrival_ns=start_ns + come, queued_ns=start_ns + come, finished_ns=start_ns + end, session=None
        )
        for request, (come, end) in zip(recorded.requests, times, strict=True)
    ]
    sent = replace(recorded, requests=requests)
    loop, model = Loop("concurrency", factor), timing.fit(recorded.steps)
    settings = recorded_settings(recorded.engine)
    jobs = [Job(str(seed), settings, model, loop, tmp_path / f"{seed}.duckdb", seed=seed) for seed in (None, 1)]
    for job, done in zip(jobs, replay(sent, jobs), strict=True):
        assert isinstance(done, Replayed), done
        with package.open(job.target) as trace:
            rows = trace.sql("SELECT arrival_ns, finished_ns FROM request ORDER BY arrival_ns, request")
        assert len(rows) == len(requests)
        assert rows.arrival_ns[12] - rows.finished_ns[:12].max() == pytest.approx(2e9, abs=10 * MS)
        for part, clients in ((rows[:12], 2), (rows[12:], 5)):
            moments = sorted([(at, 1) for at in part.arrival_ns] + [(at, -1) for at in part.finished_ns])
            assert max(accumulate(change for _, change in moments)) == max(1, round(clients * factor)), job.name
