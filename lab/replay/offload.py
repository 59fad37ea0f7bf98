"""The worker's side of vLLM's OffloadingConnector, emulated: copies take their bytes over a bandwidth.

The connector's own scheduler side decides what is stored, loaded and evicted. Copies of one direction run one after the
other; both directions and the GPU's computing run side by side.
"""

from __future__ import annotations

from typing import Any

from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.recording import LOAD, EngineFacts
from kvtrace.lab.replay.settings import Settings

NEVER = 1 << 62
"""The end of a copy whose end was not recorded."""


class Transfers:
    """Called with each step's output, takes up its copies and says which ones are done by then.

    Args:
        settings: With the bandwidths.
        engine: With the bytes of a block.
        clock: The replay's.
        reported: With recorded times: the step whose results told of each copy. Copies without one never end.
    """

    def __init__(
        self,
        settings: Settings,
        engine: EngineFacts,
        clock: VirtualClock,
        reported: dict[int, int] | None = None,
    ) -> None:
        self._clock = clock
        self._block_bytes = (engine.block_bytes or 0) * settings.block_size // engine.block_size
        self._ns_per_byte = {True: 1 / settings.store_gb_per_s, False: 1 / settings.load_gb_per_s}
        self._free_at = {True: 0, False: 0}  # by direction: True is a store
        self._running: list[tuple[int, int, str, bool]] = []
        self._reported = reported

    def __call__(self, output: Any, step: int) -> Any:
        """Return the worker's report with the results of a step, or None."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
        from vllm.v1.outputs import KVConnectorOutput

        metadata = output.kv_connector_metadata
        if metadata is not None:
            self._take_up(metadata.store_jobs, is_store=True)
            self._take_up(metadata.load_jobs, is_store=False)
            if metadata.jobs_to_flush and self._reported is None:  # the worker waits for these before it goes on
                flushed = [end for end, job, _, _ in self._running if job in metadata.jobs_to_flush]
                self._clock.set(max(flushed, default=0))
        now = self._clock.now_ns if self._reported is None else step
        done = [each for each in self._running if each[0] <= now]
        if not done:
            return None
        self._running = [each for each in self._running if each[0] > now]
        report = OffloadingWorkerMetadata()
        for _, job, _, _ in done:
            report.mark_completed(job)
        loaded = {request for _, _, request, is_store in done if not is_store}
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=report)

    def _take_up(self, jobs: dict[int, Any], *, is_store: bool) -> None:
        for number, job in jobs.items():
            if self._reported is not None:
                key = number if is_store else number | LOAD
                self._running.append((self._reported.get(key, NEVER), number, job.req_id, is_store))
                continue
            on_gpu = job.src_spec if is_store else job.dst_spec
            took = len(on_gpu.block_ids) * self._block_bytes * self._ns_per_byte[is_store]
            self._free_at[is_store] = max(self._free_at[is_store], self._clock.now_ns) + int(took)
            self._running.append((self._free_at[is_store], number, job.req_id, is_store))
