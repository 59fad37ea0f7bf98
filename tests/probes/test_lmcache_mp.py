"""LMCache's adapter where a real server does not go by itself: overlaps, several groups, a server that is gone.

The worker here keeps futures as LMCache's does; they end when a test says so. With a real server:
`tests/vllm/test_lmcache_server.py`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import TRANSFER_END, TRANSFER_SUBMIT, Direction
from kvtrace.probes.connectors.adapters.lmcache_mp import LMCacheMp
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Patches
from tests.probes.records import records_of

LOAD = SimpleNamespace(block_ids=[[4, 5, 6, 7], [8, 9], [3]], skip_first_n_tokens=32)
"""Two chunks of 64 tokens, of whose first the GPU has a half: blocks of 32 and 64 tokens, and a group that stays."""
STORE = SimpleNamespace(block_ids=[[4, 5], [8], []], skip_first_n_tokens=0)


class Future:
    """An answer of the server's; None: it has not come."""

    answer: bool | Exception | None = None

    def query(self) -> bool:
        return self.answer is not None

    def result(self, timeout: float) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return bool(self.answer)


class Worker:
    """As much of LMCache's worker as the adapter reads."""

    def __init__(self) -> None:
        self.healthy = self.is_kv_writer = True
        self.store_futures: dict[str, Future] = {}
        self.retrieve_futures: dict[str, tuple[Future, list[int]]] = {}

    def submit_store_request(self, request_id: str, op: Any, event: object = None) -> None:
        if self.healthy and self.is_kv_writer:
            self.store_futures[request_id] = Future()

    def submit_retrieve_request(self, request_id: str, op: Any, event: object = None) -> None:
        if self.healthy:
            self.retrieve_futures[request_id] = Future(), []


class Recording:
    """A worker under observation, in step 9 of an engine."""

    def __init__(self, run: Path) -> None:
        self.run, self.worker = run, Worker()
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(page_size_bytes=10), layer_names=["a", "b"])
        connector = SimpleNamespace(
            worker_adapter=self.worker,
            _group_tokens_per_block=[32, 64, 0],
            _kv_cache_config=SimpleNamespace(kv_cache_groups=[group] * 3),
        )
        self.reports: list[str] = []
        patches = Patches(lambda hook, state, detail: self.reports.append(state))
        self.part = Part(Engines(Recorder(run)), patches, connector, connector, 0)
        self.part.step = 77, 9
        self.part._engine = SimpleNamespace(step=9)
        self.adapter = LMCacheMp(self.part)
        self.adapter.attach_worker()

    def plan(self, *copies: tuple[str, str, Any]) -> list[Any]:
        """Plan the step's copies by the scheduler's side, another object."""
        requests = [SimpleNamespace(request_id=id_, direction=direction, op=op) for id_, direction, op in copies]
        return list(LMCacheMp(self.part).planned(SimpleNamespace(requests=requests), SimpleNamespace()))

    def records(self) -> tuple[list[Any], list[Any]]:
        self.adapter.after_poll(0, (), {})
        found = records_of(self.run, TRANSFER_SUBMIT, TRANSFER_END)
        return found[TRANSFER_SUBMIT.name], found[TRANSFER_END.name]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def test_what_the_gpu_has_is_not_copied_and_both_sides_give_a_copy_the_same_key(recording: Recording) -> None:
    plans = recording.plan(("a", "STORE", STORE), ("b", "RETRIEVE", LOAD), ("c", "RETRIEVE", LOAD))
    assert [plan.gpu_blocks for plan in plans] == [[4, 5, 8], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9]]
    assert [plan.direction for plan in plans] == [Direction.store, Direction.load, Direction.load]
    for request in "bc":  # the worker asks for loads before the step, and for stores behind it
        recording.worker.submit_retrieve_request(request, LOAD)
    recording.worker.submit_store_request("a", op=STORE)
    for future in (*recording.worker.store_futures.values(), recording.worker.retrieve_futures["c"][0]):
        future.answer = True
    submitted, ended = recording.records()
    planned = {plan.transfer: (len(plan.gpu_blocks), 20 * len(plan.gpu_blocks)) for plan in plans}
    assert {row.transfer: (row.blocks, row.bytes) for row in submitted} == planned
    assert len(planned) == 3
    assert {(row.transfer, row.bytes, row.success) for row in ended} == {
        (plans[0].transfer, 60, True),
        (plans[2].transfer, 100, True),
    }
    assert all(row.engine_id == 77 and row.step == 9 for row in submitted)
    assert "disabled" not in recording.reports


@pytest.mark.parametrize("answer", [False, RuntimeError("gone"), None], ids=str)
def test_a_load_that_failed_or_was_never_asked_for_moved_nothing(recording: Recording, answer: Any) -> None:
    """None: the server does not answer, so LMCache asks it for nothing."""
    recording.worker.healthy = answer is not None
    recording.worker.submit_retrieve_request("b", LOAD)
    for future, _ in recording.worker.retrieve_futures.values():
        future.answer = answer
    [submitted], [ended] = recording.records()
    assert (ended.transfer, ended.bytes, ended.success) == (submitted.transfer, 0, False)
    assert len(recording.records()[1]) == 1, "it ends once"


def test_of_ranks_with_the_same_kv_one_stores_it(recording: Recording) -> None:
    recording.worker.is_kv_writer = False
    recording.worker.submit_store_request("a", STORE)
    recording.worker.submit_retrieve_request("b", LOAD)
    submitted, ended = recording.records()
    assert [row.direction for row in submitted] == [Direction.load]
    assert ended == []
