"""The live views of real recordings, against vLLM's own counters and against the ingested trace."""

from __future__ import annotations

import pytest

from kvtrace.events import FinishReason, Limit
from kvtrace.live.engine import EngineState
from kvtrace.live.follow import EngineFollower, Follower
from kvtrace.live.misses import Verdict
from tests.vllm.conftest import Recorded, rows

RUNS = ["cached", "uncached", "tensor_parallel", "served"]


@pytest.fixture(params=RUNS)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return request.getfixturevalue(request.param)


def followed(recorded: Recorded) -> EngineFollower:
    follower = Follower(recorded.run, with_names=True, patience_s=0)
    follower.poll()
    assert (follower.problem, follower.ended) == (None, True)
    (engine,) = follower.engines
    return engine


def test_counts_equal_vllms_own_counters(recorded: Recorded) -> None:
    state = followed(recorded).state
    counters = recorded.truth["counters"]
    assert {
        "vllm:prefix_cache_queries": state.totals["queried_tokens"],
        "vllm:prefix_cache_hits": state.totals["hit_tokens"],
        "vllm:num_preemptions": state.totals["preemptions"],
        "vllm:prompt_tokens": state.totals["prompt_tokens"],
        "vllm:generation_tokens": state.totals["output_tokens"],
    }.items() <= counters.items()
    if counters["vllm:request_success"]:  # the offline `LLM` does not count them
        assert counters["vllm:request_success"] == state.finished.sum()


def test_counts_equal_the_traces(recorded: Recorded) -> None:
    state = followed(recorded).state
    assert verdicts(state) == {
        {"caching_off": "reading_off", "reading_skipped": "reading_off"}.get(verdict, verdict): count
        for verdict, count in rows(recorded, "SELECT verdict::VARCHAR, count(*) FROM prefix_miss GROUP BY 1")
    }
    limits = rows(
        recorded,
        "SELECT admission_limit::VARCHAR, count(*) FROM step_schedule WHERE admission_limit != 'none' GROUP BY 1",
    )
    assert {limit.name: int(state.limits[limit]) for limit in Limit if state.limits[limit]} == dict(limits)
    ended = rows(recorded, "SELECT finish_reason::VARCHAR, count(*) FROM request GROUP BY 1")
    assert {each.name: int(state.finished[each]) for each in FinishReason if state.finished[each]} == dict(ended)
    [(evicted, stored)] = rows(
        recorded,
        "SELECT count(*) FILTER (op = 'evict'), count(*) FILTER (op = 'cache') FROM block_event WHERE pool = 0",
    )
    assert (state.totals["evicted_blocks"], state.totals["stored_blocks"]) == (evicted, stored)


def test_the_pool_is_the_engines(recorded: Recorded) -> None:
    """All blocks are used or free in every step."""
    state = followed(recorded).state
    assert rows(recorded, "SELECT DISTINCT used_blocks + free_blocks FROM step_schedule") == [(state.blocks,)]


def test_each_request_ends_with_the_traces_figures_and_names(recorded: Recorded) -> None:
    """Its output tokens and blocks were counted by step, and are told once more at its end."""
    engine = followed(recorded)
    seen = {
        engine.names[each.request]: (
            each.prompt_tokens,
            each.output_tokens,
            each.cached_tokens,
            each.preemptions,
            engine.names[each.session],
        )
        for each in engine.state.recently_finished
    }
    told = rows(
        recorded,
        "SELECT internal_id, prompt_tokens, output_tokens, "
        "coalesce(local_cached_tokens, 0) + coalesce(external_cached_tokens, 0), preemptions, coalesce(session, '') "
        "FROM request",
    )
    assert seen == {name: tuple(facts) for name, *facts in told}
    assert not len(engine.state.requests.live())


def test_latencies_are_counted_once_a_request_and_once_a_token(recorded: Recorded) -> None:
    state = followed(recorded).state
    requests = int(state.finished.sum())
    assert state.time_to_first_token.counts.sum() == state.queue_time.counts.sum() == requests
    assert state.end_to_end.counts.sum() == requests
    assert state.inter_token.counts.sum() == state.totals["output_tokens"] - requests
    [(total_ns,)] = rows(recorded, "SELECT sum(first_token_ns - arrival_ns)::BIGINT FROM request")
    assert state.time_to_first_token.sum_ns == pytest.approx(total_ns, rel=0.01)


def verdicts(state: EngineState) -> dict[str, int]:
    return {verdict.name: int(state.misses[verdict]) for verdict in Verdict if state.misses[verdict]}
