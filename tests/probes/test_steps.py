"""Records of steps, allocations and ends of requests, against a small model of each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.capture._native import PoolState
from kvtrace.capture.recorder import Recorder
from kvtrace.events import (
    BLOCK_TABLE,
    REQUEST_EVENT,
    STEP_REQUEST,
    STEP_SCHEDULE,
    FinishReason,
    Limit,
    Phase,
    RequestOp,
)
from kvtrace.probes import requests
from kvtrace.probes.engine import NOT_ADMITTED, STEP_ATTRIBUTE, LiveRequest
from kvtrace.probes.engines import Engines
from kvtrace.probes.lookups import Lookups, hooks
from kvtrace.probes.steps import Steps
from tests.probes.records import EngineWith, records_of

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

    follows_requests = True

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
        deferred=(-1, ""),
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


def some_steps(run: Path) -> Steps:
    engines = Engines(Recorder(run))
    return Steps(engines, Lookups(engines))


class Model:
    """Return the expected records of a step of `engine_of` and `output_of`, as the events declare them."""

    def __init__(self, given: dict[str, dict[str, Any]], waiting: list[str]) -> None:
        self.live = engine_of(given, waiting)
        self.tables: list[Any] = []
        self.events: list[Any] = []
        self.added: dict[str, int] = {}
        for new in (True, False):
            for name, facts in given.items():
                blocks = facts["blocks"] or (([], []) if new else None)
                if facts["new"] == new and blocks is not None:
                    self._table(name, blocks, sets=new or facts["resumed"])
        self.shares = [self._share(name, facts) for name, facts in given.items()]
        self.step = self._step(given, waiting)

    def _table(self, name: str, blocks: tuple[list[int], ...], *, sets: bool) -> None:
        live = self.live.request(name)
        if sets or len(live.table) != len(blocks):
            live.table = [0] * len(blocks)
        for group, ids in enumerate(blocks):
            for position, block in enumerate(ids, live.table[group]):
                row = {"step": 7, "request": live.number, "kv_group": group, "op": 1 if sets else 2}
                self.tables.append(BLOCK_TABLE.record(**row, position=position, block_id=block))
            live.table[group] += len(ids)
        self.added[name] = sum(map(len, blocks))

    def _share(self, name: str, facts: dict[str, Any]) -> Any:
        live, computed = self.live.request(name), facts["computed"]
        if live.decode_from == NOT_ADMITTED:
            live.decode_from = max(facts["prompt"], live.recompute_until)
            cached = {"local_cached_tokens": 0, "external_cached_tokens": 0}
            row = {"time_ns": 11, "step": 7, "request": live.number, "op": RequestOp.schedule, "reason": 0, **cached}
            row |= {"computed_tokens": computed, "output_tokens": 0, "blocks": sum(live.table)}
            self.events.append(REQUEST_EVENT.record(**row))
        if computed >= live.decode_from:
            phase = Phase.decode
        elif computed < live.recompute_until:
            phase = Phase.resumed
        else:
            whole = computed == 0 and facts["scheduled"] >= facts["prompt"]
            phase = Phase.prefill if whole else Phase.chunked_prefill
        row = {"step": 7, "request": live.number, "phase": phase, "new_blocks": self.added.get(name, 0)}
        return STEP_REQUEST.record(**row, scheduled_tokens=facts["scheduled"], computed_tokens=computed)

    def _step(self, given: dict[str, dict[str, Any]], waiting: list[str]) -> Any:
        row: dict[str, Any] = {"start_ns": 11, "scheduled_ns": 0, "step": 7, "running": len(given)}
        for phase in Phase:
            shares = [share.scheduled_tokens for share in self.shares if share.phase == phase]
            row |= {f"{phase.name}_requests": len(shares), f"{phase.name}_tokens": sum(shares)}
        left = 512 - sum(facts["scheduled"] for facts in given.values())
        row |= {"waiting": len(waiting), "budget_tokens": 512, "budget_left_tokens": left}
        row |= {"free_blocks": 11, "used_blocks": 28, "cached_blocks": -1, "preempted_requests": 0}
        row |= {"admission_limit": Limit.max_num_seqs if waiting else Limit.none}
        row |= {"limit_request": self.live.request(waiting[0]).number if waiting else 0}
        return STEP_SCHEDULE.record(**row, limit_need_blocks=-1, limit_free_blocks=-1, limit_kept_blocks=-1)


@settings(max_examples=100)
@given(
    given=st.dictionaries(st.sampled_from(REQUESTS), request, min_size=1, max_size=6),
    waiting=st.lists(st.sampled_from(REQUESTS), max_size=2),
)
def test_a_step_is_recorded_as_its_model_says(
    tmp_path_factory: pytest.TempPathFactory, given: dict[str, dict[str, Any]], waiting: list[str]
) -> None:
    run, engine, model = tmp_path_factory.mktemp("run"), engine_of(given, waiting), Model(given, waiting)
    steps = some_steps(run)
    steps.record(steps.after((engine, 11), output_of(given), (), {}))  # type: ignore[arg-type]
    records = records_of(run, *STEP_EVENTS)
    [step] = records[STEP_SCHEDULE.name]
    assert step.scheduled_ns > 11
    assert step._replace(scheduled_ns=0) == model.step
    assert records[STEP_REQUEST.name] == model.shares
    assert records[BLOCK_TABLE.name] == model.tables
    assert records[REQUEST_EVENT.name] == model.events
    known = [{name: vars_of(live) for name, live in one.requests.items()} for one in (engine, model.live)]
    assert known[0] == known[1]


def vars_of(live: LiveRequest) -> tuple[Any, ...]:
    return live.number, live.decode_from, live.table


def test_a_step_begins_with_the_outermost_schedule_and_names_what_that_returns(tmp_path: Path) -> None:
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
    chosen = steps.after(outer, output, (engine.scheduler,), {})

    # THEN there is one step, which says so to whoever wants to know, and is recorded later
    assert getattr(output, STEP_ATTRIBUTE) == (12, 8)
    assert not list(tmp_path.iterdir())
    steps.record(chosen)
    assert (engine.step, engine.acting_step, engine.depth, engine.refused, engine.preempted) == (8, 8, 0, None, 0)
    assert watching.seen == [("begin", 8, True), ("scheduled", 8)]
    assert [record.step for record in records_of(tmp_path, STEP_SCHEDULE)[STEP_SCHEDULE.name]] == [8]

    # AND one without tokens, for which no worker will be busy, is recorded at once
    empty = output_of({})
    assert steps.after(steps.before((engine.scheduler,), {}), empty, (engine.scheduler,), {}) is None
    assert [record.step for record in records_of(tmp_path, STEP_SCHEDULE)[STEP_SCHEDULE.name]] == [8, 9]

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
def test_what_cannot_be_read_is_an_error(tmp_path: Path, wrong: dict[str, Any], error: type[Exception]) -> None:
    steps, engine, output = some_steps(tmp_path), engine_of({}, []), output_of({})
    vars(output).update(wrong)
    with pytest.raises(error):
        steps.after((engine, 1), output, (), {})  # type: ignore[arg-type]


def test_the_owner_of_an_allocation_is_its_request(tmp_path: Path) -> None:
    # GIVEN a manager whose engine follows one request and not another
    engines = Engines(Recorder(tmp_path))
    by_name = {hook.path[-1]: hook for hook in hooks(engines, Lookups(engines))}
    hook = by_name["allocate_slots"]
    assert hook.before is not None
    assert hook.after is not None
    live = LiveRequest(5)
    engine: Any = Engine(requests={"a": live}, lookup=None, owner=0, refused=None, need_blocks=3, group_needs=[])
    engine.block_pool = SimpleNamespace(get_num_free_blocks=lambda: 2)
    manager: Any = type("Manager", (), {})()
    coordinator: Any = type("Coordinator", (), {"get_num_blocks_to_allocate": lambda self: 7})()
    manager.coordinator, engine.group_lookups = coordinator, None
    engine.optional = SimpleNamespace(read=lambda target, name, lost, default: default)
    engines.by_manager[id(manager)] = engine
    known, unknown = SimpleNamespace(request_id="a"), SimpleNamespace(request_id="r4")
    blocks = object()

    # WHEN either is given blocks, by position or by name, THEN that is noted until the call has returned
    for args, kwargs, owner in (
        ((manager, known, 1), {}, 5),
        ((manager, unknown, 1), {}, 104),
        ((manager,), {"request": unknown}, 104),
    ):
        state = hook.before(args, kwargs)
        assert (state, engine.owner) == (engine, owner)
        hook.after(state, blocks, args, kwargs)
        assert engine.owner == 0

    # AND WHEN one that waits is refused, looked up or not, THEN that is noted with what it asked for, not with what an
    # earlier one did; another manager's calls are nobody's
    for args, kwargs in (
        ((manager, known, 1, 0, object()), {}),
        ((manager, known, 1), {"new_computed_blocks": object()}),
    ):
        engine.need_blocks, engine.refused = 3, None
        state = hook.before(args, kwargs)
        assert coordinator.get_num_blocks_to_allocate() == 7
        hook.after(state, None, args, kwargs)
        assert (engine.refused, engine.owner) == (("a", 7, 2, 0), 0)
        assert vars(coordinator) == {}
    assert hook.before((object(), known), {}) is None
    hook.after(None, blocks, (object(), known), {})


@pytest.mark.parametrize(
    ("free", "others", "kept"),
    [(2, True, 4), (10, True, 4 + 7), (10, False, 7)],
    ids=["by its watermark", "for blocks that are reserved, too", "alone, for blocks that are reserved"],
)
def test_a_refusal_says_what_had_to_stay_free(tmp_path: Path, free: int, others: bool, kept: int) -> None:
    engines = Engines(Recorder(tmp_path))
    hook = {hook.path[-1]: hook for hook in hooks(engines, Lookups(engines))}["allocate_slots"]
    assert hook.after is not None
    engine: Any = Engine(lookup=None, refused=None, need_blocks=3, group_needs=[])
    engine.block_pool = SimpleNamespace(get_num_free_blocks=lambda: free)
    manager = SimpleNamespace(coordinator=SimpleNamespace(), watermark_blocks=4)
    request = SimpleNamespace(request_id="a", status=SimpleNamespace(name="WAITING"))
    called = {"reserved_blocks": 7, "has_scheduled_reqs": others}
    hook.after(engine, None, (manager, request, 1, 0, object()), called)
    assert engine.refused == ("a", 3, free, kept)


@pytest.mark.parametrize(
    ("facts", "held"),
    [
        ({}, True),
        ({"last_prefill_step": 9}, False),  # it was a step with prefill
        ({"last_prefill_step": 1}, False),  # the interval is over
        ({"prefill_capacity_bound": True}, False),  # the queue was not emptied: nothing is held
        ({"local_prefill_interval": 1}, False),
        ({"running": [SimpleNamespace(is_prefill_chunk=True)]}, False),  # nobody decodes
    ],
)
def test_a_head_that_waits_for_the_next_prefill_step_is_told_apart(facts: dict[str, Any], held: bool) -> None:
    """The scheduler's attributes are those of vLLM 0.33, as its `schedule` leaves them."""
    interval = {
        "local_prefill_interval": 8, "num_executed_steps": 9, "last_prefill_step": 4, "prefill_capacity_bound": False,
    }  # fmt: skip
    running = [SimpleNamespace(is_prefill_chunk=False)]
    limit = limit_of(waiting_request("WAITING"), **{**interval, "running": running, **facts})
    assert limit == (Limit.prefill_interval if held else Limit.other)


def waiting_request(status: str, adapter: int | None = None) -> SimpleNamespace:
    lora = None if adapter is None else SimpleNamespace(lora_int_id=adapter)
    return SimpleNamespace(request_id=REQUESTS[0], status=SimpleNamespace(name=status), lora_request=lora)


def limit_of(head: SimpleNamespace, deferred: tuple[int, str] = (-1, ""), **facts: Any) -> int:
    """The limit of a head in a step with room for it."""
    scheduler = SimpleNamespace(
        **{
            "running": [],
            "max_num_running_reqs": 8,
            "scheduler_config": SimpleNamespace(enable_chunked_prefill=True),
            "_pause_state": SimpleNamespace(name="UNPAUSED"),
            "waiting": [head],
            **facts,
        }
    )
    optional = SimpleNamespace(read=lambda target, name, lost: getattr(target, name))
    engine: Any = Engine(
        requests={}, scheduler=scheduler, refused=None, preempted=0, follows_lookups=True, optional=optional, step=5,
        deferred=deferred,
    )  # fmt: skip
    return int(Steps._limit(engine, 100, 1)[0])


LORAS = {
    "lora_config": SimpleNamespace(max_loras=2),
    "running": [SimpleNamespace(lora_request=SimpleNamespace(lora_int_id=number)) for number in (1, 1, 2)]
    + [SimpleNamespace(lora_request=None)],
}


@pytest.mark.parametrize(
    ("limit", "head", "facts"),
    [
        (Limit.remote_kv, waiting_request("WAITING_FOR_REMOTE_KVS"), {}),
        (Limit.grammar, waiting_request("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"), {}),
        (Limit.streaming_input, waiting_request("WAITING_FOR_STREAMING_REQ"), {}),
        (Limit.max_num_seqs, waiting_request("WAITING_FOR_REMOTE_KVS"), {"max_num_running_reqs": 0}),
        (Limit.connector_deferred, waiting_request("WAITING"), {"deferred": (5, REQUESTS[0])}),
        (Limit.other, waiting_request("WAITING"), {"deferred": (4, REQUESTS[0])}),
        (Limit.other, waiting_request("WAITING"), {"deferred": (5, REQUESTS[1])}),
        (Limit.max_loras, waiting_request("WAITING", 3), LORAS),
        (Limit.other, waiting_request("WAITING", 2), LORAS),
        (Limit.other, waiting_request("WAITING"), LORAS),
        (Limit.other, waiting_request("WAITING", 3), {**LORAS, "lora_config": SimpleNamespace(max_loras=3)}),
        (Limit.other, waiting_request("WAITING", 3), {**LORAS, "lora_config": None}),
        (Limit.paused, waiting_request("WAITING"), {"_pause_state": SimpleNamespace(name="PAUSED_NEW")}),
    ],
)
def test_what_blocks_a_head_is_told_apart(limit: Limit, head: SimpleNamespace, facts: dict[str, Any]) -> None:
    assert limit_of(head, **facts) == limit


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


def ends_of(run: Path, given: dict[str, dict[str, Any]]) -> tuple[list[Any], Any]:
    """Return the records of these requests' ends, without times, and what is then known of them."""
    engines = Engines(Recorder(run))
    engines.recorder.open()
    [hook] = [hook for hook in requests.hooks(engines, None) if hook.path[-1] == "_free_request"]
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
    records = [record._replace(time_ns=0) for record in records_of(run, REQUEST_EVENT)[REQUEST_EVENT.name]]
    known = {name: live.finished for name, live in engine.requests.items()}
    return records, (engine.finished, known, set(engine.awaiting_first_token))


REASONS = {
    "FINISHED_STOPPED": FinishReason.stop,
    "FINISHED_LENGTH_CAPPED": FinishReason.length,
    "FINISHED_ABORTED": FinishReason.abort,
}


def model_of_ends(given: dict[str, dict[str, Any]]) -> tuple[list[Any], Any]:
    """The same, said as the events declare it: first tokens of whoever awaits one come before an end."""
    records, awaiting, known, ended = [], {}, {}, 0
    for number, (name, facts) in enumerate(given.items()):
        row = {"time_ns": 0, "step": 8, "local_cached_tokens": -1, "external_cached_tokens": -1}
        if not facts["known"]:
            continue
        known[name] = True
        if facts["awaited"]:
            awaiting[name] = number, facts
        if facts["finished"]:
            continue
        ended += 1
        for other, (its_number, its) in list(awaiting.items()):
            if its["outputs"] > 0:
                del awaiting[other]
                told = {"request": its_number, "op": RequestOp.first_token, "reason": 0, "blocks": sum(its["table"])}
                told |= {"computed_tokens": its["computed"], "output_tokens": its["outputs"]}
                records.append(REQUEST_EVENT.record(**row, **told))
        awaiting.pop(name, None)
        told = {"request": number, "op": RequestOp.finish, "blocks": sum(facts["table"])}
        told |= {"reason": REASONS.get(facts["status"], FinishReason.other), "computed_tokens": facts["computed"]}
        records.append(REQUEST_EVENT.record(**row, **told, output_tokens=facts["outputs"]))
    return records, (5 + ended, known, set(awaiting))


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(REQUESTS), end, min_size=1, max_size=6))
def test_ends_are_recorded_as_their_model_says(
    tmp_path_factory: pytest.TempPathFactory, given: dict[str, dict[str, Any]]
) -> None:
    assert ends_of(tmp_path_factory.mktemp("run"), given) == model_of_ends(given)


@pytest.mark.parametrize("gone", ["request_id", "status", "num_computed_tokens", "num_output_tokens"])
def test_an_end_that_cannot_be_read_is_an_error(tmp_path: Path, gone: str) -> None:
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
