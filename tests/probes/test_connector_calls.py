"""Hooks around forward passes, results, and connectors' calls."""

from __future__ import annotations

import gc
import json
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture._native import Around
from kvtrace.capture.recorder import Recorder
from kvtrace.events import CONNECTOR_CALL, FORWARD, STEP_UPDATE, GraphMode
from kvtrace.probes import hooks, step_results
from kvtrace.probes.connectors.adapter import Adapter
from kvtrace.probes.connectors.worker_side import calls_of
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.engines import Engines
from kvtrace.probes.worker import _forwards
from tests.probes.records import EngineWith, records_of


def marked(step: Any, tokens: Any = 5, requests: int = 2) -> Any:
    output = SimpleNamespace(total_num_scheduled_tokens=tokens, num_scheduled_tokens=dict.fromkeys(range(requests), 1))
    if step is not None:
        setattr(output, STEP_ATTRIBUTE, step)
    return output


def told(run: Path) -> list[str]:
    """The attributes that a journal says are not there."""
    lines = (json.loads(line) for path in run.glob("*/*/*.jsonl") for line in path.read_text().splitlines())
    facts = [line for line in lines if isinstance(line, dict)]
    return [line["hook"].rpartition(".")[2] for line in facts if line.get("kind") == "hook"]


def test_a_forward_pass_is_recorded_with_its_step_and_graph_mode(tmp_path: Path) -> None:
    # GIVEN passes whose scheduler's output comes by position or by name
    seen: list[Any] = []
    forwards = _forwards(Recorder(tmp_path))
    forwards.watch(lambda *facts: seen.append(facts), seen.append, lambda _: None, lambda: None)
    before = time.monotonic_ns()
    for args, kwargs, mode in (
        ((None, marked((3, 7))), {}, "FULL"),
        ((None,), {"scheduler_output": marked((3, 8), tokens=9, requests=4)}, "PIECEWISE"),
        ((None, marked((3, 9)), None, False), {}, None),
    ):
        # WHEN one is under way, its mode is named more than once; the first counts
        state = forwards.before(args, kwargs)
        for name in (mode, "NONE"):
            named = {} if name is None else {"cudagraph_runtime_mode": SimpleNamespace(name=name)}
            forwards.context((), named if mode else {})
        forwards.after(state, None, args, kwargs)

    # THEN each is there, and whoever watches was told
    records = records_of(tmp_path, FORWARD)[FORWARD.name]
    assert [record[2:] for record in records] == [
        (3, 7, 5, 2, GraphMode.full),
        (3, 8, 9, 4, GraphMode.piecewise),
        (3, 9, 5, 2, 0),
    ]
    assert all(before <= start <= end <= time.monotonic_ns() for start, end, *_ in records)
    assert [facts[1] for facts in seen[::2]] == [False, False, False]
    assert seen[1::2] == [5, 9, 5]


def test_when_passes_turn_to_piecewise_graphs_is_told_before_the_model_runs(tmp_path: Path) -> None:
    forwards, turned = _forwards(Recorder(tmp_path)), []
    forwards.watch(lambda *_: None, lambda _: None, turned.append, lambda: turned.append("other"))
    for mode, told_of in (
        ("FULL", []),
        ("PIECEWISE", [True]),
        ("PIECEWISE", []),
        ("NONE", [False]),
        ("PIECEWISE", [True]),
        ("FULL", [False]),
    ):
        forwards.before((None, marked((1, 1))), {})
        for name in (mode, "PIECEWISE"):  # the second is not the pass's
            forwards.context((), {"cudagraph_runtime_mode": SimpleNamespace(name=name)})
        assert turned == [*told_of, "other"], mode
        turned.clear()


def test_many_graph_modes_keep_their_names(tmp_path: Path) -> None:
    forwards = _forwards(Recorder(tmp_path))
    modes = [SimpleNamespace(name=name) for name in ("NONE", "FULL", "PIECEWISE", "OTHER", "FULL", "NONE", "PIECEWISE")]
    found = []
    for mode in modes * 2:
        forwards.before((None, marked((1, 1))), {})
        forwards.context((), {"cudagraph_runtime_mode": mode})
        found.append(forwards.mode)
    assert found == [1, 3, 2, 0, 3, 1, 2] * 2 == [int(getattr(GraphMode, n, 0)) for n in _NAMES] * 2


_NAMES = "eager", "full", "piecewise", "other", "full", "eager", "piecewise"


def test_passes_of_no_step_are_not_recorded_and_said_if_they_go_on(tmp_path: Path) -> None:
    # GIVEN dummies, and as many passes without a mark as a warm-up has
    recorder = Recorder(tmp_path)
    recorder.note("role", opens=True)
    forwards = _forwards(recorder)
    for args, kwargs in [((None, marked((1, 1)), None, True), {}), ((None, marked((1, 1))), {"dummy_run": True})]:
        assert forwards.before(args, kwargs) == 0
        forwards.after(0, None, args, kwargs)
    for _ in range(32):
        forwards.after(forwards.before((None, marked(None)), {}), None, (None, marked(None)), {})
    assert told(tmp_path) == []

    # WHEN they go on, THEN it is said, once
    for _ in range(3):
        forwards.after(1, None, (None, marked(None)), {})
    assert told(tmp_path) == [STEP_ATTRIBUTE]
    assert records_of(tmp_path, FORWARD)[FORWARD.name] == []


@pytest.mark.parametrize(
    "output", [marked((1, 2), tokens=1 << 40), marked((1, 2), tokens="no"), marked("no"), marked((1, 2, 3)), None]
)
def test_what_a_pass_cannot_say_is_an_error(tmp_path: Path, output: Any) -> None:
    recorder = Recorder(tmp_path)
    recorder.note("role", opens=True)
    forwards = _forwards(recorder)
    if output is None:
        output = SimpleNamespace()
        setattr(output, STEP_ATTRIBUTE, (1, 2))
    with pytest.raises(Exception, match=r"."):
        forwards.after(1, None, (None, output), {})
    assert records_of(tmp_path, FORWARD)[FORWARD.name] == []


def engine_at(step: int) -> Any:
    return EngineWith(step=step, updating=False, awaiting_first_token={}, acting_step=step, finished=3)


def test_results_are_recorded_for_the_step_they_belong_to(tmp_path: Path) -> None:
    # GIVEN an engine that is two steps ahead
    engines = Engines(Recorder(tmp_path))
    engines.recorder.note("role", opens=True)
    [updates], scheduler = step_results.hooks(engines), SimpleNamespace()
    assert updates.before is not None
    assert updates.after is not None
    engine = engines.by_scheduler[id(scheduler)] = engine_at(9)
    for output, sampled, acting in (
        (marked((1, 7)), [[1], [], [2, 3]], 7),
        (marked((1, 8)), None, 8),
        (marked(None), [[4]], -1),
    ):
        args, kwargs = (scheduler, output), {"model_runner_output": SimpleNamespace(sampled_token_ids=sampled)}

        # WHEN results come back, THEN it acts for their step until they are there
        state = updates.before(args, kwargs)
        assert (state, engine.acting_step, engine.updating, engine.finished) == (engine, acting, True, 0)
        assert updates.before(args, kwargs) is None  # the call of a subclass's parent
        updates.after(None, None, args, kwargs)
        engine.finished = 2
        updates.after(state, None, args, kwargs)
        assert (engine.acting_step, engine.updating) == (9, False)

    # AND all is recorded; another scheduler's are nobody's
    assert updates.before((object(), marked((1, 7))), {}) is None
    records = records_of(tmp_path, STEP_UPDATE)[STEP_UPDATE.name]
    assert [record[2:] for record in records] == [(7, 3, 2), (8, 0, 2), (-1, 1, 2)]
    assert all(start <= end for start, end, *_ in records)
    assert told(tmp_path) == [STEP_ATTRIBUTE]


class Known(Adapter):
    """An adapter that has something to do at every call."""

    def __init__(self, part: Any) -> None:
        super().__init__(part)
        self.seen: list[Any] = []
        self.attached = iter([False, True])

    def attach_worker(self) -> bool:
        self.seen.append("attach")
        return next(self.attached)

    def after_load(self, start_ns: int, args: Any, kwargs: Any) -> None:
        self.seen.append(("load", args, kwargs))

    def before_save(self) -> None:
        self.seen.append("before save")

    def after_save(self, start_ns: int, args: Any, kwargs: Any) -> None:
        self.seen.append(("save", args, kwargs))

    def after_poll(self, start_ns: int, args: Any, kwargs: Any) -> None:
        self.seen.append(("poll", args, kwargs))


class SomePart(SimpleNamespace):
    """As much of a connector's part as its calls need."""


def part_of(run: Path) -> Any:
    engines = Engines(Recorder(run))
    engines.recorder.note("role", opens=True)
    return SomePart(recorder=engines.recorder, optional=engines.optional, index=2, name="Some", step=(0, -1))


def metadata(step: Any) -> Any:
    found = SimpleNamespace()
    if step is not None:
        setattr(found, STEP_ATTRIBUTE, step)
    return found


@pytest.mark.parametrize("kind", [Known, Adapter])
def test_a_connector_s_calls_are_recorded_with_their_step(tmp_path: Path, kind: Any) -> None:
    # GIVEN a connector's part and its adapter
    part = part_of(tmp_path)
    adapter = kind(part)
    calls = calls_of(part, adapter)
    name = part.recorder.intern("Some")
    expected = []
    for args, kwargs, step in (
        ((metadata((4, 6)),), {}, (4, 6)),
        ((), {"connector_metadata": metadata((4, 7))}, (4, 7)),
        ((metadata(None),), {}, (0, -1)),
    ):
        # WHEN it is called in a step, as vLLM does
        calls.metadata(args, kwargs)
        assert part.step == step
        calls.load(calls.begin((), {}), None, (1,), {"a": 2})
        calls.save(calls.begin_save((), {}), None, (), {})
        for finished in ((None, {"a"}), SimpleNamespace(finished_sending=["a", "b"], finished_recving=None)):
            calls.poll(calls.begin((), {}), finished, (), {})
        of_all = *step, 2, name
        expected += [(*of_all, *others) for others in ((1, -1, -1), (2, -1, -1), (3, 0, 1), (3, 2, 0))]

    # THEN each call is there, and the adapter has done its part
    records = records_of(tmp_path, CONNECTOR_CALL)[CONNECTOR_CALL.name]
    assert [record[2:] for record in records] == expected
    assert all(start <= end for start, end, *_ in records)
    assert told(tmp_path) == [STEP_ATTRIBUTE]
    if kind is Known:
        once = [("load", (1,), {"a": 2}), "before save", ("save", (), {}), ("poll", (), {}), ("poll", (), {})]
        assert adapter.seen == ["attach", *once, "attach", *once, *once]

    # AND WHEN nothing says the step any more
    calls.without_step()
    assert part.step == (0, -1)


def test_metadata_whose_step_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    part = part_of(tmp_path)
    calls = calls_of(part, Adapter(part))
    with pytest.raises(RuntimeError):
        calls.metadata((Broken(),), {})
    assert told(tmp_path) == []


def test_a_name_is_interned_again_in_a_forked_process(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    calls = calls_of(part, Adapter(part))
    part.recorder.intern("another")
    calls.load(1, None, (), {})
    part.recorder._after_fork()
    calls.load(2, None, (), {})
    records = records_of(tmp_path, CONNECTOR_CALL)[CONNECTOR_CALL.name]
    assert sorted(record[5] for record in records) == [1, 2]


def test_a_poll_s_result_that_is_none_of_the_known_is_an_error(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    calls = calls_of(part, Adapter(part))
    for wrong in (None, (None,), (None, 5)):
        with pytest.raises((AttributeError, TypeError, ValueError, IndexError)):
            calls.poll(1, wrong, (), {})


def test_an_attribute_has_another_value_for_the_time_of_a_call() -> None:
    # GIVEN that nobody has it yet, THEN nothing is changed
    found: list[Any] = []
    changed = Around(lambda: found[0] if found else None, "holder", "ours")
    nobody = changed.before((), {})
    owner = SimpleNamespace(holder="theirs")
    found.append(owner)
    changed.after(nobody, None, (), {})
    assert owner.holder == "theirs"

    # WHEN somebody has, THEN it is, also within itself, and put back
    outer = changed.before((), {})
    assert (outer, owner.holder) == ("theirs", "ours")
    inner = changed.before((), {})
    changed.after(inner, None, (), {})
    assert owner.holder == "ours"
    changed.after(outer, None, (), {})
    assert owner.holder == "theirs"


def test_what_is_kept_for_calls_is_let_go_of(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.calls = calls_of(part, Adapter(part))  # a cycle, as with the hooks on a connector
    part.around = Around(iter([part]).__next__, "holder", part)
    part.holder = None
    part.around.before((), {})
    gone = weakref.ref(part)
    del part
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (((1, 2), {}, 1, "a"), 2),
        (((1,), {"a": 3}, 1, "a"), 3),
        (((1,), {}, 1, "a"), None),
        (((), {"b": 1}, 0, "a", False), False),
        (((None,), {"a": 1}, 0, "a", 5), None),
    ],
)
def test_an_argument_is_found_by_position_or_by_name(given: Any, found: Any) -> None:
    assert hooks.argument(*given) is found
