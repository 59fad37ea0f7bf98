"""The worker's side of vLLM's SimpleCPUOffloadConnector, emulated: copies take their bytes over a bandwidth."""

from __future__ import annotations

from typing import Any

from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.offload import NEVER
from kvtrace.lab.replay.recording import LOAD
from kvtrace.lab.replay.tiers.link import Link


class SimpleCpuTransfers:
    """Called with each step's output, takes up its copies and says which ones are done by then.

    Args:
        block_bytes: Bytes of a GPU block.
        load_gb_per_s: Bandwidth of copies from the host, GB/s.
        store_gb_per_s: Bandwidth of copies to the host, GB/s.
        clock: The replay's.
        reported: With recorded times: the step whose results told of each copy, as `Recording.transfers`.
    """

    def __init__(
        self,
        block_bytes: int,
        load_gb_per_s: float,
        store_gb_per_s: float,
        clock: VirtualClock,
        reported: dict[int, int] | None = None,
    ) -> None:
        self._clock, self._block_bytes, self._reported = clock, block_bytes, reported
        self._load, self._store = Link(load_gb_per_s), Link(store_gb_per_s)
        self._loads: list[tuple[int, list[str]]] = []
        self._stores: list[tuple[int, int]] = []

    def __call__(self, output: Any, step: int = 0) -> Any:
        """Return the worker's report with the results of a step, or None."""
        from vllm.v1.outputs import KVConnectorOutput
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        told, now = output.kv_connector_metadata, self._clock.now_ns
        if told is not None and told.need_flush and self._reported is None:  # the worker first waits for all copies
            ends = [end for end, _ in (*self._loads, *self._stores)]
            self._clock.set(max(ends, default=0))
        if told is not None and told.load_event >= 0:
            end = self._end(self._load, told.load_event | LOAD, len(told.load_gpu_blocks), now)
            self._loads.append((end, list(told.load_event_to_reqs.get(told.load_event, ()))))
        if told is not None and told.store_event >= 0:
            end = self._end(self._store, told.store_event, len(told.store_gpu_blocks), now)
            self._stores.append((end, told.store_event))
        now = self._clock.now_ns if self._reported is None else step
        loaded = {request for end, requests in self._loads if end <= now for request in requests}
        stored = {event: 1 for end, event in self._stores if end <= now}
        if not loaded and not stored:
            return None
        self._loads = [each for each in self._loads if each[0] > now]
        self._stores = [each for each in self._stores if each[0] > now]
        report = SimpleCPUOffloadWorkerMetadata(stored) if stored else None
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=report)

    def _end(self, link: Link, transfer: int, blocks: int, now: int) -> int:
        """The end of a copy: a time, or the step that tells of it."""
        if self._reported is not None:
            return self._reported.get(transfer, NEVER)
        return link.copy(blocks * self._block_bytes, now)
