"""Failures inside an engine: hooks that raise, what they report, engines that go away."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import TRANSFER_END, PinCause
from kvtrace.format.layout import JOURNAL, RUN_DIR_VARIABLE
from kvtrace.format.reader import open_recording
from kvtrace.probes.connectors.adapters.by_slots import BySlots
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.engine import MOST_REQUESTS, Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Hook, Patches, wrap
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.requests import _tags


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class BlockPool:
    hash_block_size = 16


class Scheduler:
    """Scheduler with as much as kvtrace needs to follow it."""

    def __init__(self) -> None:
        self.kv_cache_manager = SimpleNamespace(block_pool=BlockPool())
        self.block_size = 16
        self.requests: dict[str, Any] = {}


def test_neither_an_exception_without_words_nor_a_failing_report_reaches_the_engine() -> None:
    reports: list[str] = []

    def report(hook: str, state: str, detail: str) -> None:
        reports.append(detail)
        raise OSError("no room to say it")

    def broken(*_: Any) -> None:
        raise SpeechlessError

    wrapped = wrap(lambda n: n + 1, Hook("m:f", "everything", after=broken), report)
    assert [wrapped(1), wrapped(2)] == [2, 3]
    _, detail = reports  # that it fired, and that it failed
    assert detail.startswith("SpeechlessError: (it cannot say what) (line ")
    assert detail.endswith("lost: everything")


def test_a_hook_that_cannot_be_put_in_place_is_named_and_the_others_are_installed() -> None:
    class Fixed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("this class cannot be changed")

    module = ModuleType("engine")
    module.Fixed = Fixed("Fixed", (), {"run": lambda self: 1})  # type: ignore[attr-defined]
    module.free = lambda: 2  # type: ignore[attr-defined]
    reports: list[tuple[str, str, str]] = []
    patches = Patches(lambda *report: reports.append(report))
    patches.patch_module(module, [Hook("engine:Fixed.run", "runs"), Hook("engine:free", "frees")])
    assert [(hook, state) for hook, state, _ in reports] == [
        ("engine:Fixed.run", "disabled"),
        ("engine:free", "installed"),
    ]
    assert "cannot be changed" in reports[0][2]


def test_of_several_hooks_on_a_place_each_failure_is_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for state, detail in (
        ("installed", ""),
        ("disabled", "lost: one thing"),
        ("installed", ""),  # on another object
        ("disabled", "lost: another"),
        ("disabled", "lost: another"),
    ):
        recorder.note("hook", hook="m:f", state=state, detail=detail, opens=True)
    [process] = open_recording(tmp_path).processes
    assert process.hooks == {"m:f": ("disabled", "lost: one thing; lost: another")}


@pytest.mark.parametrize("turn", ["²", "१", "99999999999999999999", -1, None, 1.5, "x", [1]])
def test_no_tag_of_a_clients_can_make_a_hook_fail(turn: Any, tmp_path: Path) -> None:
    parameters = SimpleNamespace(extra_args={"kvtrace_session": ["s", 1], "kvtrace_turn": turn})
    request = SimpleNamespace(sampling_params=parameters)
    assert _tags(request, OptionalAttributes(Recorder(tmp_path))) == ("['s', 1]", -1, "")


def test_an_attribute_that_is_missing_is_named_once_with_what_is_lost(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.note("role", opens=True, role="engine")
    optional, pool = OptionalAttributes(recorder), BlockPool()
    assert optional.read(pool, "hash_block_size", "hashes", 1) == 16
    assert [optional.read(pool, "num_gpu_blocks", "sizes", -1) for _ in range(3)] == [-1, -1, -1]
    [process] = open_recording(tmp_path).processes
    assert (process.directory / JOURNAL).read_text().count("num_gpu_blocks") == 1
    assert process.hooks == {f"{__name__}:BlockPool.num_gpu_blocks": ("absent", "sizes")}


@pytest.mark.parametrize("layer", [SimpleNamespace(), SimpleNamespace(kv_cache=None)])
def test_layers_without_a_kv_cache_leave_bytes_unknown_and_that_is_said(tmp_path: Path, layer: Any) -> None:
    class ExampleConnector:
        _connector_metadata = SimpleNamespace(requests=[SimpleNamespace(slot_mapping=range(32), is_store=False)])
        _vllm_config = SimpleNamespace(cache_config=SimpleNamespace(block_size=16))

    recorder, connector = Recorder(tmp_path), ExampleConnector()
    part = Part(Engines(recorder), Patches(lambda *_: None), connector, connector, 0)
    part.step = 1, 1
    BySlots(part).after_load(0, (SimpleNamespace(no_compile_layers={"layer": layer}),), {})
    [process] = open_recording(tmp_path).processes
    told = {"types:SimpleNamespace.kv_cache": ("absent", "bytes of transfers of ExampleConnector and LMCache")}
    assert process.hooks == ({} if hasattr(layer, "kv_cache") else told)
    [segment] = process.segments()[TRANSFER_END.name]
    values = TRANSFER_END.struct.unpack_from(segment.path.read_bytes(), 4096)
    assert dict(zip((field.name for field in TRANSFER_END.fields), values, strict=False))["bytes"] == -1


def test_a_scheduler_without_a_waiting_queue_has_an_unknown_number_of_waiting_requests(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.note("role", opens=True, role="engine")
    whole, halved = Scheduler(), Scheduler()
    whole.waiting, whole.skipped_waiting = ["first"], ["second", "third"]  # type: ignore[attr-defined]
    halved.skipped_waiting = ["second"]  # type: ignore[attr-defined]
    engines = Engines(recorder)
    assert [engines.add(whole).waiting(), engines.add(halved).waiting()] == [3, -1]
    [process] = open_recording(tmp_path).processes
    assert process.hooks[f"{__name__}:Scheduler.waiting"][0] == "absent"


@pytest.mark.parametrize("fails", ["before", "after", "absent"])
def test_what_only_a_failed_hook_would_release_is_released_once_and_the_engine_sees_nothing(fails: str) -> None:
    kept, released = ["a request"], []

    def off() -> None:
        released.append(kept.pop())
        raise RuntimeError("and more went wrong")

    def broken(*_: Any) -> None:
        raise SpeechlessError

    module = ModuleType("engine")
    hook = Hook("engine:free", "frees", off=off)
    if fails != "absent":
        module.free = lambda: 2  # type: ignore[attr-defined]
        hook = hook._replace(**{fails: broken})
    Patches(lambda *_: None).patch_module(module, [hook])
    if fails != "absent":
        assert [module.free(), module.free()] == [2, 2]
    assert (kept, released) == ([], ["a request"])


def test_an_engine_forgets_what_dead_hooks_would_have_let_go_and_so_does_the_next_one(tmp_path: Path) -> None:
    engines, scheduler = Engines(Recorder(tmp_path)), Scheduler()
    engine = engines.add(scheduler)
    engine.request("r")
    engine.lookup = (1, object(), 0)
    engine.acts_for(SimpleNamespace(request_id="r"))
    engine.pins.start(PinCause.delayed_free, "r", 1, [3])
    engines.off(Engine.without_steps)()
    assert (engine.step, engine.lookup, engine.owner, engine.awaiting_first_token) == (-1, None, 0, None)
    engines.off(Engine.without_ends)()
    engine.acts_for(SimpleNamespace(request_id="other"))
    assert (engine.requests, engine.owner) == ({}, 0)
    with pytest.raises(RuntimeError, match="nothing sees their ends"):
        engine.request("other")
    engines.off(lambda one: one.pins.unfollow(PinCause.delayed_free))()
    assert not engine.pins.is_open(PinCause.delayed_free, "r")
    engine.pins.start(PinCause.delayed_free, "s", 1, [3])
    assert not engine.pins.is_open(PinCause.delayed_free, "s")
    following = engines.add(Scheduler())
    assert (following.step, following.follows_requests) == (-1, False)


def test_requests_whose_end_is_not_seen_are_forgotten(tmp_path: Path) -> None:
    scheduler = Scheduler()
    engine = Engines(Recorder(tmp_path)).add(scheduler)
    scheduler.requests["lives"] = object()
    first = engine.request("lives")
    for number in range(3 * MOST_REQUESTS):
        engine.request(f"gone{number}")
        assert len(engine.requests) <= MOST_REQUESTS
    assert engine.request("lives") is first


def test_an_engine_that_is_let_go_of_goes_and_the_next_one_counts_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    engines, scheduler = Engines(recorder), Scheduler()
    engine = engines.add(scheduler)
    engine.step = 7
    pool = weakref.ref(scheduler.kv_cache_manager.block_pool)
    del scheduler, engine
    gc.collect()
    assert pool() is None
    assert [*engines.by_scheduler, *engines.by_manager, *engines.pools] == []
    assert engines.add(following := Scheduler()).step == 7
    assert engines.pool(following.kv_cache_manager.block_pool) is not None
    [process] = open_recording(tmp_path).processes
    [(event, [segment])] = process.segments().items()
    assert (event, segment.count()) == ("block_event", (1, 0))  # the cache was emptied


def test_without_its_compiled_part_a_process_is_not_recorded_and_says_how_to_get_it(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['kvtrace.capture._native'] = None; "
        "from kvtrace.probes import plugin; plugin.load(); print('the engine goes on')"
    )
    environment = {**os.environ, RUN_DIR_VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "the engine goes on\n"
    [line] = done.stderr.splitlines()
    assert re.search(r"not recording in process \d+: kvtrace's compiled part cannot be loaded from .*C compiler", line)
    assert list(tmp_path.iterdir()) == []
