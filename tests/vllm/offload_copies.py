"""Calls the functions by which vLLM hands blocks to its copiers, with the copying itself left out.

The functions are vLLM's own, with kvtrace's hooks on them; only what would touch a GPU behind them is replaced.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import numpy as np
from vllm.plugins import load_general_plugins


class Handler:
    def transfer_async(self, job_id: int, source: Any, target: Any) -> bool:
        return True


def simple() -> None:
    from vllm.v1.simple_kv_offload.copy_backend import DmaCopyBackend

    backend = DmaCopyBackend.__new__(DmaCopyBackend)
    backend._store_params = backend._load_params = object()
    backend._queue = SimpleQueue()
    backend.launch_copy([4, 5, 6], [0, 1, 2], True, 0, [])
    backend.launch_copy(src_blocks=[0, 1], dst_blocks=[8, 9], is_store=False, event_idx=1, events_list=[])
    assert backend._queue.qsize() == 2


def offloading() -> None:
    from vllm.v1.kv_offload.base import GPULoadStoreSpec
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
    from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

    worker = CPUOffloadingWorker.__new__(CPUOffloadingWorker)
    worker._store_handler = worker._load_handler = Handler()
    gpu = GPULoadStoreSpec(np.array([1, 2, 3, 4, 5]), group_sizes=[5], block_indices=[0])
    cpu = CPULoadStoreSpec(np.array([7, 8]))
    assert worker.submit_store(1, gpu, cpu)
    assert worker.submit_load(2, cpu, gpu)


if __name__ == "__main__":
    load_general_plugins()
    simple()
    offloading()
