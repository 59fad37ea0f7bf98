"""The NixlPullConnector's adapter where a real pair of engines does not go: several handles, failures, other clocks.

The worker here calls NIXL's agent as vLLM's does; the agent's transfers end when a test says so. With the real ones:
`tests/vllm/test_handover.py`.
"""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.events import HANDOVER_NOTICE, HANDOVER_READ, TRANSFER_END, TRANSFER_SUBMIT
from kvtrace.probes.connectors.adapters.nixl import Nixl
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Patches
from tests.probes.records import records_of


class Handle:
    """A transfer that is in progress until its state is set."""

    state = "PROC"

    def __init__(self) -> None:
        self.start_us = time.monotonic_ns() // 1000


class Agent:
    """As much of NIXL's agent as the worker calls."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.refuses = False
        self.clock_us = 0  # how far its clock is ahead
        self.telemetry = True

    def make_prepped_xfer(self, operation: str, local: int, local_indices: list[int], *_: Any, **__: Any) -> Handle:
        self.handles.append(Handle())
        return self.handles[-1]

    def transfer(self, handle: Handle) -> str:
        if self.refuses:
            raise RuntimeError("the other side is gone")
        return "PROC"

    def check_xfer_state(self, handle: Handle) -> str:
        return handle.state

    def get_xfer_telemetry(self, handle: Handle) -> Any:
        if not self.telemetry:
            return SimpleNamespace()
        now_us = time.monotonic_ns() // 1000
        return SimpleNamespace(
            startTime=handle.start_us + self.clock_us,
            postDuration=7,
            xferDuration=now_us - handle.start_us,
            totalBytes=4096,
            descCount=2,
        )

    def release_xfer_handle(self, handle: Handle) -> None:
        self.handles.remove(handle)


class Worker:
    """Reads from two workers of the other engine, once it knows it."""

    def __init__(self) -> None:
        self.nixl_wrapper = Agent()
        self.knows = True
        self.reading: list[Handle] = []
        self.heard: set[str] = set()

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        for _ in range(2 if self.knows else 0):
            handle = self.nixl_wrapper.make_prepped_xfer("READ", 1, [3, 4, 5], 2, [7, 8, 9], notif_msg=b"theirs:1")
            try:
                self.nixl_wrapper.transfer(handle)
                self.reading.append(handle)
            except RuntimeError:
                self.nixl_wrapper.release_xfer_handle(handle)
                return

    def poll(self) -> None:
        left = []
        for handle in self.reading:
            state = self.nixl_wrapper.check_xfer_state(handle)
            if state == "PROC":
                left.append(handle)
                continue
            if state == "DONE":
                self.nixl_wrapper.get_xfer_telemetry(handle)
            self.nixl_wrapper.release_xfer_handle(handle)
        self.reading = left

    def _get_new_notifs(self) -> set[str]:
        return self.heard


class Recording:
    """A worker under observation, in step 9 of an engine."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.worker = Worker()
        self.reports: list[tuple[str, str]] = []
        patches = Patches(lambda hook, state, detail: self.reports.append((hook.rpartition(".")[2], state)))
        self.connector = SimpleNamespace(connector_worker=self.worker)
        self.part = Part(Engines(Recorder(run)), patches, self.connector, self.connector, 0)
        self.part.step = 77, 9
        self.adapter = Nixl(self.part)
        metadata = SimpleNamespace(
            reqs_to_recv={"mine": self.request(), "all-here": SimpleNamespace(local_block_ids=())}
        )
        [self.plan] = self.adapter.planned(metadata, SimpleNamespace())
        self.meta = metadata.reqs_to_recv["mine"]
        self.adapter.attach_worker()

    @staticmethod
    def request() -> Any:
        """A prompt of four blocks there, of which the first is here already."""
        remote = SimpleNamespace(block_ids=([10, 11, 12, 13],), engine_id="other", request_id="theirs")
        return SimpleNamespace(local_block_ids=([3, 4, 5],), remote=remote)

    def read(self) -> None:
        self.worker._read_blocks_for_req("mine", self.meta)

    def end(self, *states: str) -> None:
        for handle, state in zip(list(self.worker.reading), states, strict=True):
            handle.state = state
        self.worker.poll()

    def records(self) -> tuple[list[Any], list[Any], list[Any]]:
        found = records_of(self.run, HANDOVER_READ, TRANSFER_SUBMIT, TRANSFER_END)
        return found[HANDOVER_READ.name], found[TRANSFER_SUBMIT.name], found[TRANSFER_END.name]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def test_two_handles_of_a_request_are_two_reads_and_one_transfer(recording: Recording) -> None:
    assert (recording.plan.gpu_blocks, recording.plan.other_blocks) == ([3, 4, 5], [11, 12, 13])
    recording.read()
    recording.end("DONE", "PROC")
    assert len(recording.records()[2]) == 0, "its second read goes on"
    recording.end("DONE")
    reads, [submitted], [ended] = recording.records()
    for read in reads:
        assert (read.engine_id, read.step, read.transfer, read.success) == (77, 9, recording.plan.transfer, True)
        assert (read.descriptors, read.posted_descriptors, read.bytes, read.post_ns) == (3, 2, 4096, 7000)
        assert read.begin_ns <= read.prepare_ns <= read.prepared_ns <= read.posted_ns < read.seen_ns
        assert read.prepare_ns - 1000 < read.wire_start_ns < read.seen_ns
    assert [read.running_ns > read.posted_ns for read in reads] == [False, True]
    assert (submitted.transfer, submitted.blocks) == (recording.plan.transfer, 3)
    assert (ended.transfer, ended.bytes, ended.success) == (recording.plan.transfer, 8192, True)
    assert ended.finished_ns == reads[1].seen_ns


def test_a_request_waits_for_a_handshake_from_when_it_was_taken_up(recording: Recording) -> None:
    recording.worker.knows = False
    recording.read()
    knew_ns = time.monotonic_ns()
    recording.worker.knows = True
    recording.read()
    recording.end("DONE", "DONE")
    reads, _, _ = recording.records()
    assert all(read.begin_ns < knew_ns < read.prepare_ns for read in reads)


def test_a_time_of_another_clock_is_not_taken_for_one_of_ours(recording: Recording) -> None:
    recording.worker.nixl_wrapper.clock_us = time.time_ns() // 1000
    recording.read()
    recording.end("DONE", "DONE")
    reads, _, [ended] = recording.records()
    assert {read.wire_start_ns for read in reads} == {0} == {ended.started_ns}
    assert min(read.wire_ns for read in reads) >= 0


def test_reads_that_fail_are_recorded_as_failed(recording: Recording) -> None:
    recording.read()
    recording.end("DONE", "ERR")
    [good, bad], _, [ended] = recording.records()
    assert (good.success, bad.success, ended.success) == (True, False, False)
    assert (bad.wire_ns, bad.bytes, ended.bytes) == (-1, -1, -1)


def test_a_read_that_could_not_be_posted_is_no_transfer(recording: Recording) -> None:
    recording.worker.nixl_wrapper.refuses = True
    recording.read()
    [read], submitted, ended = recording.records()
    assert (read.posted_ns, read.seen_ns, read.success) == (0, 0, False)
    assert submitted == ended == []


def test_without_telemetry_no_wire_time_is_made_up(recording: Recording) -> None:
    recording.worker.nixl_wrapper.telemetry = False
    recording.read()
    recording.end("DONE", "DONE")
    reads, _, _ = recording.records()
    assert ("get_xfer_telemetry", "disabled") in recording.reports
    assert {(read.wire_start_ns, read.wire_ns, read.bytes) for read in reads} == {(0, -1, -1)}
    assert all(read.success and read.seen_ns for read in reads)


def test_a_hook_that_fails_costs_reads_and_keeps_nothing_alive(recording: Recording) -> None:
    recording.read()
    alive = [weakref.ref(handle) for handle in recording.worker.reading]
    for handle in recording.worker.reading:
        recording.adapter._reads[handle] = SimpleNamespace()  # type: ignore[assignment]
    del handle
    recording.end("DONE", "DONE")
    assert ("check_xfer_state", "disabled") in recording.reports
    recording.read()  # none is followed any more
    recording.end("DONE", "DONE")
    assert recording.records()[0] == []
    recording.worker.nixl_wrapper.handles.clear()
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


class Slotted:
    """Metadata that takes no further attribute."""

    __slots__ = ("local_block_ids", "remote")


def test_metadata_that_cannot_be_numbered_costs_the_transfer_and_not_the_reads(recording: Recording) -> None:
    meta, plain = Slotted(), recording.request()
    meta.local_block_ids, meta.remote = plain.local_block_ids, plain.remote
    assert list(recording.adapter.planned(SimpleNamespace(reqs_to_recv={"mine": meta}), SimpleNamespace())) == []
    recording.meta = meta
    recording.read()
    recording.end("DONE", "DONE")
    reads, submitted, ended = recording.records()
    assert [(read.transfer, read.success, read.begin_ns > 0) for read in reads] == [(-1, True, True)] * 2
    assert submitted == ended == []


def test_the_notice_of_a_read_names_its_request(recording: Recording, tmp_path: Path) -> None:
    recording.worker._get_new_notifs()
    recording.worker.heard = {"mine", "yours"}
    recording.worker._get_new_notifs()
    notices = records_of(tmp_path, HANDOVER_NOTICE)[HANDOVER_NOTICE.name]
    assert [(notice.engine_id, notice.step) for notice in notices] == [(77, 9)] * 2
    assert len({notice.request for notice in notices} - {0}) == 2
