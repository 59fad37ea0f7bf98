"""LMCacheConnectorV1's adapter: when its stores start. Its `save` waits for the step's own work before it copies.

An engine with it needs a GPU: `bench/offload.py`.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import TRANSFER_END, TRANSFER_SUBMIT, Direction
from kvtrace.probes.connectors.adapters.by_slots import BySlots
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Patches
from tests.probes.records import records_of


class Engine:
    """LMCache's, as much as the adapter sees."""

    def __init__(self) -> None:
        self.asked_ns: list[int] = []

    def store(self, tokens: list[int], **kwargs: Any) -> None:
        self.asked_ns.append(time.monotonic_ns())


def _request(tokens: int, stored: int) -> Any:
    return SimpleNamespace(
        slot_mapping=list(range(tokens)),
        load_spec=None,
        save_spec=SimpleNamespace(can_save=True, skip_leading_tokens=stored),
    )


class LMCacheConnectorV1:
    """The connector, with two requests to store from 16 tokens on, and what its wait takes before each."""

    _vllm_config = SimpleNamespace(cache_config=SimpleNamespace(block_size=16))

    def __init__(self, engine: Engine | None) -> None:
        self._lmcache_engine = SimpleNamespace(lmcache_engine=engine)
        self._connector_metadata = SimpleNamespace(requests=[_request(48, 16), _request(32, 16)])
        self.free_ns = 0

    def save(self) -> None:
        engine = self._lmcache_engine.lmcache_engine
        for request in self._connector_metadata.requests:
            self.free_ns = self.free_ns or time.monotonic_ns()  # when the step's own work has ended
            if engine is not None:
                engine.store(request.slot_mapping)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_store_starts_when_the_first_request_is_stored_and_was_asked_for_with_the_wait(
    tmp_path: Path, steps: int
) -> None:
    engine = Engine()
    connector = LMCacheConnectorV1(engine)
    adapter = BySlots(_part(tmp_path, connector))
    adapter.attach_worker()
    for number in range(steps):
        asked_ns = _step(adapter, connector, number)
        submitted, ended = _records(tmp_path)
        assert (submitted[-1].submitted_ns, submitted[-1].blocks) == (asked_ns, 3)
        assert submitted[-1].direction == Direction.store
        assert asked_ns < connector.free_ns <= ended[-1].started_ns <= engine.asked_ns[2 * number]
        assert engine.asked_ns[2 * number + 1] <= ended[-1].finished_ns
    assert len(ended) == steps


@pytest.mark.parametrize("engine", [None, SimpleNamespace()])
def test_without_an_engine_of_lmcaches_that_stores_a_store_starts_with_the_wait(tmp_path: Path, engine: Any) -> None:
    connector = LMCacheConnectorV1(None)
    connector._lmcache_engine.lmcache_engine = engine
    told: list[tuple[str, str]] = []
    adapter = BySlots(_part(tmp_path, connector, told))
    adapter.attach_worker()
    connector._lmcache_engine.lmcache_engine = None
    asked_ns = _step(adapter, connector, 0)
    [[submitted], [ended]] = _records(tmp_path)
    assert submitted.submitted_ns == ended.started_ns == asked_ns
    assert told == ([] if engine is None else [("types:SimpleNamespace.store", "absent")])


def _part(run: Path, connector: Any, told: list[tuple[str, str]] | None = None) -> Part:
    patches = Patches(lambda hook, state, detail: told.append((hook, state)) if told is not None else None)
    return Part(Engines(Recorder(run)), patches, connector, connector, 0)


def _step(adapter: BySlots, connector: LMCacheConnectorV1, number: int) -> int:
    adapter.part.step, connector.free_ns = (77, 9 + number), 0
    adapter.before_save()
    asked_ns = time.monotonic_ns()
    connector.save()
    adapter.after_save(asked_ns, (), {})
    return asked_ns


def _records(run: Path) -> tuple[list[Any], list[Any]]:
    found = records_of(run, TRANSFER_SUBMIT, TRANSFER_END)
    return found[TRANSFER_SUBMIT.name], found[TRANSFER_END.name]
