"""The state's figures on small histories whose answers are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvtrace.events import Limit
from kvtrace.live.engine import EngineState
from kvtrace.live.follow import EngineFollower, Follower
from kvtrace.live.misses import Verdict
from kvtrace.live.requests import PLACES, State, seen
from kvtrace.live.window import EXPORTED_NS, SECOND_NS, WINDOW_S, Durations, SecondSums, percentile_ns
from tests.live.pretend import STEP_NS, PretendEngine, begin


@pytest.fixture
def engine(tmp_path: Path) -> PretendEngine:
    begin(tmp_path / "run")
    return PretendEngine(tmp_path / "run")


def followed(engine: PretendEngine) -> EngineFollower:
    follower = Follower(engine.run, with_names=True)
    follower.poll()
    (found,) = follower.engines
    return found


def verdicts(state: EngineState) -> dict[str, int]:
    return {verdict.name: int(state.misses[verdict]) for verdict in Verdict if state.misses[verdict]}


def test_a_request_is_seen_waiting_running_preempted_and_running_again(engine: PretendEngine) -> None:
    request = engine.queue("one", 40, [1, 2], session="chat")
    other = engine.queue("two", 20, [3])

    def states() -> dict[str, tuple[State, int]]:
        found = followed(engine)
        live = [seen(row) for row in found.state.requests.live()]
        return {found.names[each.request]: (each.state, each.blocks) for each in live}

    engine.run_step(admit=1)
    assert states() == {"one": (State.running, 3), "two": (State.waiting, 0)}
    engine.run_step(preempt=request)
    assert states() == {"one": (State.preempted, 0), "two": (State.waiting, 0)}
    engine.run_step(admit=2)
    assert states() == {"one": (State.running, request.blocks), "two": (State.running, other.blocks)}
    engine.finish(request)
    found = followed(engine)
    (ended,) = found.state.recently_finished
    assert (found.names[ended.request], found.names[ended.session]) == ("one", "chat")
    assert (ended.output_tokens, ended.preemptions, ended.prompt_tokens) == (request.output, 1, 40)
    assert list(states()) == ["two"]


def test_a_step_scheduled_before_a_requests_end_came_does_not_bring_it_back(engine: PretendEngine) -> None:
    request = engine.queue("one", 40, [1, 2])
    engine.run_step(admit=1)
    follower = Follower(engine.run)
    follower.poll()
    engine.finish(request)
    follower.poll()
    engine.running.append(request)  # as the scheduler saw it when it planned this step
    engine.run_step()
    follower.poll()
    assert not len(follower.engines[0].state.requests.live())


def test_each_verdict_that_the_hashes_tell(engine: PretendEngine) -> None:
    first = engine.queue("first", 40, [1, 2])
    engine.run_step(admit=1)
    assert verdicts(followed(engine).state) == {"never_stored": 1}
    engine.queue("same again", 40, [1, 2])
    engine.run_step(admit=1)
    assert verdicts(followed(engine).state) == {"never_stored": 1, "shorter_than_block": 1}
    engine.queue("whole prompt cached", 32, [1, 2])
    engine.run_step(admit=1, evict=0)
    assert verdicts(followed(engine).state)["last_token"] == 1
    engine.finish(first)
    engine.queue("after the eviction", 40, [1, 2])
    engine.run_step(admit=1, evict=2)
    assert verdicts(followed(engine).state) == {
        "never_stored": 1, "shorter_than_block": 1, "last_token": 1, "evicted": 1,
    }  # fmt: skip


def test_latencies_are_those_of_the_steps(engine: PretendEngine) -> None:
    engine.queue("one", 40, [1, 2])
    engine.run_step()
    for _ in range(4):
        engine.run_step(admit=1)
    state = followed(engine).state
    half = STEP_NS // 2
    assert state.queue_time.sum_ns == 2 * STEP_NS
    assert state.time_to_first_token.counts.sum() == 1
    assert state.time_to_first_token.sum_ns == pytest.approx(
        2 * STEP_NS + half, abs=STEP_NS // 4
    )  # arrival is UNIX time
    assert (state.inter_token.counts.sum(), state.inter_token.sum_ns) == (3, 3 * STEP_NS)
    assert state.limits[Limit.kv_insufficient] == 1


def test_sums_are_of_the_last_minute() -> None:
    sums = SecondSums(2)
    start = 100 * SECOND_NS
    sums.add(np.arange(200) * SECOND_NS + start, np.arange(200) % 2, 1)
    assert sums.total(start + 199 * SECOND_NS).tolist() == [WINDOW_S // 2, WINDOW_S // 2]
    assert sums.total(start + 220 * SECOND_NS).sum() == WINDOW_S - 21
    assert sums.total(start + 500 * SECOND_NS).sum() == 0


def test_percentiles_are_within_four_percent() -> None:
    durations = Durations()
    values = np.geomspace(1e5, 1e11, 5000).astype(np.int64)
    durations.add(np.full(len(values), 5 * SECOND_NS), values)
    for share in (0.01, 0.5, 0.9, 0.99):
        found = percentile_ns(durations.recent(5 * SECOND_NS), share)
        assert found == pytest.approx(np.quantile(values, share, method="lower"), rel=0.04)
    assert percentile_ns(durations.recent(100 * SECOND_NS), 0.5) is None


def test_exported_buckets_include_their_upper_bound() -> None:
    durations = Durations()
    durations.add(np.full(3, SECOND_NS), [1_000_000, 1_000_001, int(EXPORTED_NS[-1]) + 1])
    assert (durations.counts[0], durations.counts[1], durations.counts[-1]) == (1, 1, 1)


def test_a_request_whose_place_is_taken_by_a_newer_one_is_forgotten(engine: PretendEngine) -> None:
    table = followed(engine).state.requests
    table["state"][table.place(5)] = State.waiting
    table["state"][table.place(5 + PLACES)] = State.running
    assert not table.is_live(5)
    assert table.is_live(5 + PLACES)
