"""C and Python record steps, forward passes and connectors' calls alike."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.stream import NATIVE_VARIABLE
from kvtrace.events import BLOCK_TABLE, REQUEST_EVENT, STEP_REQUEST, STEP_SCHEDULE, RequestOp
from kvtrace.probes import requests
from kvtrace.probes.engine import NOT_ADMITTED, STEP_ATTRIBUTE, LiveRequest
from kvtrace.probes.engines import Engines
from kvtrace.probes.lookups import Lookups, hooks
from kvtrace.probes.state import PoolState
from kvtrace.probes.steps import Steps
from tests.probes.records import EngineWith, records_of

pytest.importorskip("kvtrace.capture._native", reason="kvtrace was installed without its compiled part")

REQUESTS = [f"r{number}" for number in range(6)]
tokens = st.integers(0, 300)
blocks = st.lists(st.integers(0, 99), max_size=4)
request = st.fixed_dictionaries(
    {
        "scheduled": st.integers(1, 200),
        "computed": tokens,
        "prompt": st.integers(1, 300),
        "decode_from": st.one_of(st.just(NOT_ADMITTED), tokens),
        "recompute_until": tokens,
        "known": st.booleans(),
        "groups": st.integers(0, 2),
        "blocks": st.one_of(st.none(), st.tuples(blocks, blocks), st.tuples(blocks)),
        "new": st.booleans(),
        "resumed": st.booleans(),
    }
)


STEP_EVENTS = STEP_SCHEDULE, STEP_REQUEST, BLOCK_TABLE, REQUEST_EVENT


class Engine(EngineWith):
    """As much of an engine as its steps need."""

    def request(self, request_id: str) -> LiveRequest:
        return self.requests.setdefault(request_id, LiveRequest(100 + REQUESTS.index(request_id)))

    def waiting(self) -> int:
        return sum(len(getattr(self.scheduler, name)) for name in self.queues) if self.queues else -1

    def head(self) -> Any:
        return next(iter(self.scheduler.waiting), None)


def a_pool(cached: int) -> PoolState:
    pool = PoolState()
    pool.cached = cached
    return pool


def engine_of(given: dict[str, dict[str, Any]], waiting: list[str]) -> Engine:
    live = {}
    for number, (request_id, facts) in enumerate(given.items()):
        if facts["known"]:
            live[request_id] = LiveRequest(number)
            live[request_id].decode_from = facts["decode_from"]
            live[request_id].recompute_until = facts["recompute_until"]
            live[request_id].table = [3] * facts["groups"]
    requests = {
        request_id: SimpleNamespace(
            request_id=request_id,
            num_computed_tokens=facts["computed"] + facts["scheduled"],
            num_prompt_tokens=facts["prompt"],
            num_output_tokens=0,
        )
        for request_id, facts in given.items()
    }
    scheduler = SimpleNamespace(
        requests=requests,
        running=list(given),
        waiting=[SimpleNamespace(request_id=request_id) for request_id in waiting],
        max_num_scheduled_tokens=512,
        max_num_running_reqs=len(given),
    )
    return Engine(
        requests=live,
        scheduler=scheduler,
        step=7,
        depth=1,
        pid=12,
        follows_lookups=True,
        awaiting_first_token={},
        lookup=None,
        queues=["waiting"],
        refused=None,
        preempted=0,
        pool=a_pool(cached=-5),
        block_pool=SimpleNamespace(get_num_free_blocks=lambda: 11, num_gpu_blocks=40),
    )


def output_of(given: dict[str, dict[str, Any]]) -> Any:
    old = [name for name, facts in given.items() if not facts["new"]]
    return SimpleNamespace(
        num_scheduled_tokens={name: facts["scheduled"] for name, facts in given.items()},
        total_num_scheduled_tokens=sum(facts["scheduled"] for facts in given.values()),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=facts["blocks"] or ([], []))
            for name, facts in given.items()
            if facts["new"]
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=old,
            new_block_ids=[given[name]["blocks"] for name in old],
            resumed_req_ids={name for name in old if given[name]["resumed"]},
        ),
    )


def a_way(run: Path, way: str) -> Steps:
    """Recorder of steps in C (1) or in Python (0)."""
    os.environ[NATIVE_VARIABLE] = way
    try:
        engines = Engines(Recorder(run))
        return Steps(engines, Lookups(engines))
    finally:
        del os.environ[NATIVE_VARIABLE]


def a_step(
    run: Path, way: str, given: dict[str, dict[str, Any]], waiting: list[str]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """A step's records but for when it ended, and what is then known of its requests."""
    steps, engine = a_way(run, way), engine_of(given, waiting)
    steps.after((engine, 11), output_of(given), (), {})  # type: ignore[arg-type]
    records = records_of(run, *STEP_EVENTS)
    records[STEP_SCHEDULE.name] = [(start, *others) for start, _, *others in records[STEP_SCHEDULE.name]]
    return records, {name: (live.number, live.decode_from, live.table) for name, live in engine.requests.items()}


@settings(deadline=None, max_examples=60)
@given(
    given=st.dictionaries(st.sampled_from(REQUESTS), request, min_size=1, max_size=6),
    waiting=st.lists(st.sampled_from(REQUESTS), max_size=2),
)
def test_steps_are_the_same_both_ways(
    tmp_path_factory: pytest.TempPathFactory, given: dict[str, dict[str, Any]], waiting: list[str]
) -> None:
    compiled, python = (a_step(tmp_path_factory.mktemp("run"), way, given, waiting) for way in "10")
    assert compiled == python
    assert len(compiled[0][STEP_REQUEST.name]) == len(given)
    assert len(compiled[0][STEP_SCHEDULE.name]) == 1


def test_a_step_begins_with_the_outermost_schedule_and_names_what_that_returns(both_ways: str, tmp_path: Path) -> None:
    # GIVEN an engine of a scheduler whose `schedule` calls its parent's, and another that nobody follows
    class Watching:
        """Ranges, as for a profiler."""

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def begin_step(self, engine: Any, start_ns: int) -> None:
            self.seen.append(("begin", engine.step, start_ns > 0))

        def scheduled(self, engine: Any) -> None:
            self.seen.append(("scheduled", engine.step))

    engines, watching = Engines(Recorder(tmp_path)), Watching()
    steps = Steps(engines, Lookups(engines), watching)  # type: ignore[arg-type]
    one = {"scheduled": 1, "computed": 5, "decode_from": 0, "recompute_until": 0, "prompt": 3, "known": True}
    given = {"r0": one | {"groups": 0, "blocks": None, "new": False, "resumed": False}}
    engine, output = engine_of(given, []), output_of(given)
    engine.depth, engine.acting_step, engine.refused, engine.preempted = 0, 7, ("r1", 1, 2), 3
    stranger = SimpleNamespace()
    engines.by_scheduler[id(engine.scheduler)] = engine  # type: ignore[assignment]

    # WHEN both schedule
    assert steps.before((stranger,), {}) is None
    steps.after(None, output, (stranger,), {})
    outer = steps.before((engine.scheduler,), {})
    inner = steps.before((engine.scheduler,), {})
    steps.after(inner, output, (engine.scheduler,), {})
    assert not hasattr(output, STEP_ATTRIBUTE)
    steps.after(outer, output, (engine.scheduler,), {})

    # THEN there is one step, which says so to whoever wants to know
    assert getattr(output, STEP_ATTRIBUTE) == (12, 8)
    assert (engine.step, engine.acting_step, engine.depth, engine.refused, engine.preempted) == (8, 8, 0, None, 0)
    assert watching.seen == [("begin", 8, True), ("scheduled", 8)]
    assert [record[2] for record in records_of(tmp_path, STEP_SCHEDULE)[STEP_SCHEDULE.name]] == [8]

    # AND none of an engine that cannot follow its steps
    engine.step = -1
    assert steps.before((engine.scheduler,), {}) is None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"num_scheduled_tokens": {"gone": 1}}, KeyError),
        ({"total_num_scheduled_tokens": 1 << 40}, Exception),
        ({"scheduled_cached_reqs": SimpleNamespace(req_ids=["r0"], new_block_ids=[], resumed_req_ids=())}, ValueError),
        ({"scheduled_new_reqs": [SimpleNamespace(req_id="r0")]}, AttributeError),
        ({"scheduled_new_reqs": [SimpleNamespace(req_id="r0", block_ids=([1, None],))]}, Exception),
    ],
)
def test_what_cannot_be_read_is_an_error_both_ways(
    both_ways: str, tmp_path: Path, wrong: dict[str, Any], error: type[Exception]
) -> None:
    steps, engine, output = a_way(tmp_path, both_ways), engine_of({}, []), output_of({})
    vars(output).update(wrong)
    with pytest.raises(error):
        steps.after((engine, 1), output, (), {})  # type: ignore[arg-type]


def test_the_owner_of_an_allocation_is_its_request(both_ways: str, tmp_path: Path) -> None:
    # GIVEN a manager whose engine follows one request and not another
    engines = Engines(Recorder(tmp_path))
    by_name = {hook.path[-1]: hook for hook in hooks(engines, Lookups(engines))}
    hook = by_name["allocate_slots"]
    assert hook.before is not None
    assert hook.after is not None
    live = LiveRequest(5)
    owners: list[Any] = []
    engine: Any = Engine(requests={"a": live}, lookup=None, owner=0, refused=None, need_blocks=3)
    engine.acts_for = lambda request: owners.append(request) or setattr(engine, "owner", 9)
    engine.block_pool = SimpleNamespace(get_num_free_blocks=lambda: 2)
    manager: Any = type("Manager", (), {})()
    manager.coordinator = type("Coordinator", (), {})()
    engines.by_manager[id(manager)] = engine
    known, unknown = SimpleNamespace(request_id="a"), SimpleNamespace(request_id="b")
    blocks = object()

    # WHEN either is given blocks, by position or by name, THEN that is noted until the call has returned
    if both_ways == "0":
        engine.acts_for = lambda request: setattr(engine, "owner", 5 if request is known else 9)
    for args, kwargs, owner in (
        ((manager, known, 1), {}, 5),
        ((manager, unknown, 1), {}, 9),
        ((manager,), {"request": unknown}, 9),
    ):
        state = hook.before(args, kwargs)
        assert (state, engine.owner) == (engine, owner)
        hook.after(state, blocks, args, kwargs)
        assert engine.owner == 0

    # AND WHEN it is refused, THEN that is noted, as before; another manager's calls are nobody's
    state = hook.before((manager, known, 1, 0, object()), {})
    hook.after(state, None, (manager, known, 1, 0, object()), {})
    assert (engine.refused, engine.owner) == (("a", 3, 2), 0)
    assert hook.before((object(), known), {}) is None
    hook.after(None, blocks, (object(), known), {})


end = st.fixed_dictionaries(
    {
        "status": st.sampled_from(
            ["FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "FINISHED_OTHERWISE"]
        ),
        "computed": tokens,
        "outputs": tokens,
        "table": st.lists(st.integers(0, 99), max_size=3),
        "known": st.booleans(),
        "finished": st.booleans(),
        "awaited": st.booleans(),
        "by_name": st.booleans(),
    }
)


def ends_of(run: Path, way: str, given: dict[str, dict[str, Any]]) -> tuple[list[Any], Any]:
    """Return the records of these requests' ends, without times, and what is then known of them."""
    os.environ[NATIVE_VARIABLE] = way
    try:
        engines = Engines(Recorder(run))
        engines.recorder.open()
        [hook] = [hook for hook in requests.hooks(engines, None) if hook.path[-1] == "_free_request"]
    finally:
        del os.environ[NATIVE_VARIABLE]
    engine = engine_of({}, [])
    engine.finished, engine.update_start, engine.acting_step = 5, 1, 8
    scheduler: Any = SimpleNamespace()
    engines.by_scheduler[id(scheduler)] = engine  # type: ignore[assignment]
    for number, (request_id, facts) in enumerate(given.items()):
        request = SimpleNamespace(
            request_id=request_id,
            status=SimpleNamespace(name=facts["status"]),
            num_computed_tokens=facts["computed"],
            num_output_tokens=facts["outputs"],
        )
        if facts["known"]:
            engine.requests[request_id] = live = LiveRequest(number)
            live.finished, live.table = facts["finished"], facts["table"]
            if facts["awaited"]:
                engine.awaiting_first_token[request_id] = request
        assert hook.before is not None
        args, kwargs = ((scheduler,), {"request": request}) if facts["by_name"] else ((scheduler, request), {})
        assert hook.before(args, kwargs) is None
        assert hook.before((SimpleNamespace(), request), {}) is None  # a scheduler that nobody follows
    records = [record[1:] for record in records_of(run, REQUEST_EVENT)[REQUEST_EVENT.name]]
    known = {name: live.finished for name, live in engine.requests.items()}
    return records, (engine.finished, known, set(engine.awaiting_first_token))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(REQUESTS), end, min_size=1, max_size=6))
def test_ends_are_the_same_both_ways(
    tmp_path_factory: pytest.TempPathFactory, given: dict[str, dict[str, Any]]
) -> None:
    compiled, python = (ends_of(tmp_path_factory.mktemp("run"), way, given) for way in "10")
    assert compiled == python
    ended = [facts for facts in given.values() if facts["known"] and not facts["finished"]]
    assert compiled[1][0] == 5 + len(ended)
    assert [record[2] for record in compiled[0]].count(int(RequestOp.finish)) == len(ended)


@pytest.mark.parametrize("gone", ["request_id", "status", "num_computed_tokens", "num_output_tokens"])
def test_an_end_that_cannot_be_read_is_an_error_both_ways(both_ways: str, tmp_path: Path, gone: str) -> None:
    engines = Engines(Recorder(tmp_path))
    [hook] = [hook for hook in requests.hooks(engines, None) if hook.path[-1] == "_free_request"]
    engine, scheduler = engine_of({}, []), SimpleNamespace()
    engine.finished, engine.requests["r1"] = 0, LiveRequest(1)
    engines.by_scheduler[id(scheduler)] = engine  # type: ignore[assignment]
    status = SimpleNamespace(name="FINISHED_STOPPED")
    request = SimpleNamespace(request_id="r1", status=status, num_computed_tokens=1, num_output_tokens=1)
    delattr(request, gone)
    assert hook.before is not None
    with pytest.raises(AttributeError, match=gone):
        hook.before((scheduler, request), {})
