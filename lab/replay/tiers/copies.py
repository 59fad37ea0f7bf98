"""The worker's side of vLLM's offloading connectors, emulated: copies take their bytes over a bandwidth.

A connector's own scheduler side decides what is stored, loaded and evicted. Copies of one direction run one after the
other; both directions and the GPU's computing run side by side. Beginning them is work of the host, for which a step
waits, and for most of a copy that a thread hands to the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.drive import HostTime
from kvtrace.lab.replay.recording import HIDDEN_COPY_NS, LOAD
from kvtrace.lab.replay.tiers.link import Link
from kvtrace.lab.replay.tiers.rows import CopyRows

NEVER = 1 << 62
"""The end of a copy whose end was not recorded."""


class Copy(NamedTuple):
    """A copy that was begun; `end` is a time, or the step whose results told of it."""

    end: int
    number: int
    requests: Collection[str]
    is_store: bool


class Copies(ABC):
    """Takes up the copies of each step that is launched, and says with its results which ones are done by then.

    Args:
        block_bytes: Bytes of a GPU block.
        load_gb_per_s: Bandwidth of copies from the host, GB/s.
        store_gb_per_s: Bandwidth of copies to the host, GB/s.
        begin_ns: Time of the host to begin the copy of a block.
        clock: The replay's.
        reported: With recorded times: the step whose results told of each copy, as `Recording.transfers`. Copies
            without one never end.
        rows: Writes copies into the trace; None without one.
    """

    def __init__(
        self,
        block_bytes: int,
        load_gb_per_s: float,
        store_gb_per_s: float,
        begin_ns: int,
        clock: VirtualClock,
        reported: dict[int, int] | None = None,
        rows: CopyRows | None = None,
    ) -> None:
        self._block_bytes, self._clock, self._reported, self._rows = block_bytes, clock, reported, rows
        self._links = {False: Link(load_gb_per_s), True: Link(store_gb_per_s)}
        self._running: list[Copy] = []
        self._begin_ns, self._host_ns = begin_ns, 0
        self._holds = {False: 0, True: 0}  # by direction: for how long launches wait, ns

    def begin(self, output: Any) -> HostTime:
        """Take up the copies of a step that is launched now. Return what that takes of the host."""
        self._host_ns, self._holds = self._clock.now_ns, {False: 0, True: 0}
        if output.kv_connector_metadata is not None:
            self._take_up(output.kv_connector_metadata)
        if self._rows is not None:
            self._rows.step(output.kv_connector_metadata)
        return HostTime(self._host_ns - self._clock.now_ns, self._holds[False], computed_ns=self._holds[True])

    def __call__(self, output: Any, step: int = 0) -> Any:
        """Return the worker's report with the results of a step, or None."""
        from vllm.v1.outputs import KVConnectorOutput

        now = self._clock.now_ns if self._reported is None else step
        done = [copy for copy in self._running if copy.end <= now]
        if not done:
            return None
        self._running = [copy for copy in self._running if copy.end > now]
        loaded = {request for copy in done if not copy.is_store for request in copy.requests}
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=self._report(done))

    @abstractmethod
    def _take_up(self, told: Any) -> None:
        """Begin the copies that the scheduler's side asks for."""

    @abstractmethod
    def _report(self, done: list[Copy]) -> Any:
        """Return the connector's own report on copies that have ended."""

    def _begin(self, number: int, blocks: int, requests: Collection[str], *, is_store: bool) -> None:
        if self._reported is not None:
            end = self._reported.get(number if is_store else number | LOAD, NEVER)
        else:
            self._host_ns += blocks * self._begin_ns
            size, link = blocks * self._block_bytes, self._links[is_store]
            end, took_ns = link.copy(size, self._host_ns), link.took_ns(size)
            if self._rows is not None:
                self._rows.copied(number, blocks, size, self._host_ns, end - took_ns, end, is_store=is_store)
            self._holds[is_store] += self._holds_up_ns(took_ns)
        self._running.append(Copy(end, number, requests, is_store))

    def _holds_up_ns(self, took_ns: int) -> int:
        """For how long a copy that takes so long holds up launches."""
        return 0

    def _wait_for(self, copies: Iterable[Copy]) -> None:
        """Let the worker wait; recorded times have that in them."""
        if self._reported is None:
            self._host_ns = max([self._host_ns, *(copy.end for copy in copies)])


class OffloadingCopies(Copies):
    """Of vLLM's OffloadingConnector. A step's stores begin with the next one, when it has been computed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stores: dict[int, Any] = {}

    def _take_up(self, told: Any) -> None:
        flushed, later = told.jobs_to_flush or (), dict(told.store_jobs)
        due = self._stores | {number: later.pop(number) for number in flushed if number in later}
        for number, job in due.items():
            self._begin(number, len(job.src_spec.block_ids), [job.req_id], is_store=True)
        self._stores = later
        if flushed:  # before the worker goes on
            self._wait_for(copy for copy in self._running if copy.number in flushed)
        for number, job in told.load_jobs.items():
            self._begin(number, len(job.dst_spec.block_ids), [job.req_id], is_store=False)

    def _report(self, done: list[Copy]) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        report = OffloadingWorkerMetadata()
        for copy in done:
            report.mark_completed(copy.number)
        return report


class SimpleCpuCopies(Copies):
    """Of vLLM's SimpleCPUOffloadConnector.

    Its thread's copies hold up launches.

    Its worker keeps the stores that are not over in a set of numbers, and tells of those that end with one step in the
    set's order, in which the scheduler's side releases their blocks. The order follows from what was added and removed
    before, so with recorded times the same set is kept here.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pending: set[int] = set()

    def __call__(self, output: Any, step: int = 0) -> Any:
        """Return the worker's report with the results of a step, or None."""
        told = output.kv_connector_metadata
        if self._reported is not None and told is not None and told.store_event >= 0:
            self._pending.add(told.store_event)  # not before the results of the step before
        return super().__call__(output, step)

    def _take_up(self, told: Any) -> None:
        if told.need_flush:  # before the worker begins others
            self._wait_for(self._running)
        if told.load_event >= 0:
            requests = list(told.load_event_to_reqs.get(told.load_event, ()))
            self._begin(told.load_event, len(told.load_gpu_blocks), requests, is_store=False)
        if told.store_event >= 0:
            self._begin(told.store_event, len(told.store_gpu_blocks), (), is_store=True)

    def _holds_up_ns(self, took_ns: int) -> int:
        return max(took_ns - HIDDEN_COPY_NS, 0)

    def _report(self, done: list[Copy]) -> Any:
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        ended = [copy.number for copy in done if copy.is_store]
        if self._reported is not None:
            ended = [number for number in self._pending if number in ended]
            for number in ended:  # one by one: a set that loses several at once may be laid out anew
                self._pending.discard(number)
        return SimpleCPUOffloadWorkerMetadata(dict.fromkeys(ended, 1)) if ended else None
