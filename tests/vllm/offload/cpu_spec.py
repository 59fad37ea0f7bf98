"""An offloading spec that works without a GPU: vLLM's own manager, and a worker that copies between CPU tensors.

It writes what it does, a JSON object a line, to the file named by KVTRACE_TEST_SPEC_LOG: the independent source that
recordings are compared with.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CpuSpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        chunks = self.num_chunks if hasattr(self, "num_chunks") else self.num_blocks  # in vLLM 0.27 and 0.29
        return CpuWorker(kv_caches, chunks, self.blocks_per_chunk)


class CpuWorker(OffloadingWorker):
    """Copies when asked; reports it with the next poll."""

    def __init__(self, kv_caches: Any, chunks: int, blocks_per_chunk: int) -> None:
        assert blocks_per_chunk == 1
        self.gpu = [cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes) for cache in kv_caches.tensors]
        self.cpu = [torch.zeros((chunks, tensor.shape[1]), dtype=torch.int8) for tensor in self.gpu]
        self.finished: list[TransferResult] = []
        self.log = open(os.environ["KVTRACE_TEST_SPEC_LOG"], "a", buffering=1)  # noqa: SIM115, PTH123

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy("store", job_id, self.gpu, src_spec.block_ids, self.cpu, dst_spec.block_ids)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy("load", job_id, self.cpu, src_spec.block_ids, self.gpu, dst_spec.block_ids)

    def _copy(self, direction: str, job_id: int, source: Any, from_ids: Any, target: Any, to_ids: Any) -> bool:
        start = time.monotonic()
        from_ids, to_ids = [int(i) for i in from_ids], [int(i) for i in to_ids]
        for src, dst in zip(source, target, strict=True):
            dst[to_ids] = src[from_ids]
        size = sum(len(from_ids) * tensor.shape[1] for tensor in source)
        self.finished.append(TransferResult(job_id, True, size, time.monotonic() - start))
        gpu, cpu = (from_ids, to_ids) if direction == "store" else (to_ids, from_ids)
        line = {"direction": direction, "job": job_id, "gpu": gpu, "cpu": cpu, "bytes": size}
        self.log.write(json.dumps(line) + "\n")
        return True

    def get_finished(self) -> list[TransferResult]:
        results, self.finished = self.finished, []
        return results

    def wait(self, job_ids: set[int]) -> None:
        pass
