"""Jobs drawn again: how many, when they come, and what they share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.lab.replay.recording import EngineFacts, RecordedRequest, Recording, StepTime
from kvtrace.lab.replay.resample import jobs_of, resampled
from kvtrace.lab.replay.workload import recording_of_workloads
from kvtrace.lab.workloads import make
from kvtrace.queries.statistics import replicate_difference, replicate_interval

ENGINE = EngineFacts(
    1, "tiny", "0.32.0", 16, 16, 1000, 1024, 1, 512, 8, 4096, "fcfs", None, True, True, False, None
)  # fmt: skip


ASKED = RecordedRequest(1, "a", "a", None, 0, None, 0, 0, 0, 40, 2, 2, "length", 1)
LIKE = Recording(Path("t.duckdb"), ENGINE, [ASKED], [StepTime(0, 0, None, None, 0, 0, 0, 0, 0)], [], None, [])


def families() -> Recording:
    """Six families of two jobs, which share prefixes."""
    parameters = {"kind": "shared-prefix", "families": 6, "members": 2, "rate": 2.0, "seed": 3}
    return recording_of_workloads([make("families", parameters)], ENGINE, LIKE)


def test_as_many_jobs_come_when_jobs_came() -> None:
    recording = families()
    drawn = resampled(recording, 1)
    arrivals = [[job[0].arrival_ns for job in jobs_of(each)] for each in (recording, drawn)]
    assert arrivals[0] == arrivals[1]
    names = {request.internal_id for request in drawn.requests}
    assert len(names) == len(drawn.requests)
    assert resampled(recording, 1).requests == drawn.requests
    assert resampled(recording, 2).requests != drawn.requests


def test_a_job_drawn_twice_shares_what_it_shared_with_others_only() -> None:
    recording = families()
    of = {request.internal_id: request for request in recording.requests}
    held = [{h for request in job for h in request.chain.values()} for job in jobs_of(recording)]
    shared = {
        h for number, one in enumerate(held) for h in one if any(h in o for m, o in enumerate(held) if m != number)
    }
    assert shared
    drawn = resampled(recording, 1)
    twins: dict[str, list[set[int]]] = {}
    for request in drawn.requests:
        twins.setdefault(request.internal_id.split("~")[0], []).append(set(request.chain.values()))
    twice = {name: chains for name, chains in twins.items() if len(chains) > 1}
    assert twice
    for name, (first, second, *_) in twice.items():
        assert first & second == set(of[name].chain.values()) & shared


def test_an_interval_needs_eight_samples_and_holds_their_mean() -> None:
    assert replicate_interval([1.0] * 7) is None
    found = replicate_interval([9.0, 10.0, 11.0, 10.0, 9.0, 11.0, 10.0, 10.0])
    assert found is not None
    # mean 10, standard deviation 0.756, Student's quantile at 7 is 2.365
    assert (found.low, found.high) == (pytest.approx(8.21, abs=0.01), pytest.approx(11.79, abs=0.01))


TIMES = st.lists(st.floats(1, 1000), min_size=8, max_size=12)


@given(TIMES, TIMES, st.integers(2, 5))
def test_two_runs_differ_by_what_each_varies_however_many_are_drawn(
    base: list[float], other: list[float], times: int
) -> None:
    found, swapped = replicate_difference(base, other), replicate_difference(other, base)
    one, two = replicate_interval(base), replicate_interval(other)
    assert found.interval is not None
    assert swapped.interval is not None
    assert one is not None
    assert two is not None
    beside = found.interval.high - found.value
    # GIVEN the same the other way round THEN so is the interval
    assert swapped.interval.high == pytest.approx(-found.interval.low, abs=1e-6)
    # it is wider than what either varies by, and narrower than both together
    alone = [(each.high - each.low) / 2 for each in (one, two)]
    assert max(alone) <= beside + 1e-6
    assert beside <= sum(alone) + 1e-6
    # GIVEN each draw several times THEN only Student's quantile is smaller: a run is no surer for more draws
    more = replicate_difference(base * times, other * times).interval
    assert more is not None
    assert 0.75 * beside <= (more.high - more.low) / 2 + 1e-6
    assert replicate_difference(base[:7], other).interval is None
