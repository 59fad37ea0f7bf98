"""A tiny connector, whose adapter docs/add-a-connector.md writes: it copies prompts' whole blocks to host memory.

It writes every copy, a JSON object a line, to the file named by KVTRACE_TEST_SPEC_LOG. Adapters in the folder of its
option `adapters` are found like kvtrace's own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

from kvtrace.probes.connectors import adapters


@dataclass
class Copy:
    job: int
    request: str
    blocks: list[int]


@dataclass
class MirrorMetadata(KVConnectorMetadata):
    copies: list[Copy]


class MirrorConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        adapters.__path__.append(vllm_config.kv_transfer_config.kv_connector_extra_config["adapters"])
        self.block_size, self.blocks = vllm_config.cache_config.block_size, kv_cache_config.num_blocks
        self.jobs = 0
        self.caches: dict[str, torch.Tensor] = {}
        self.copies: dict[tuple[int, str], torch.Tensor] = {}

    def build_connector_meta(self, scheduler_output: Any) -> MirrorMetadata:
        copies = []
        for new in scheduler_output.scheduled_new_reqs:
            computed = new.num_computed_tokens + scheduler_output.num_scheduled_tokens[new.req_id]
            blocks = new.block_ids[0][new.num_computed_tokens // self.block_size : computed // self.block_size]
            if blocks:
                self.jobs += 1
                copies.append(Copy(self.jobs, new.req_id, blocks))
        return MirrorMetadata(copies)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = kv_caches

    def wait_for_save(self) -> None:
        for copy in self._get_connector_metadata().copies:
            self.copy_out(copy.job, copy.blocks)

    def copy_out(self, job: int, blocks: list[int]) -> int:
        """Copy blocks of all layers to host memory; the number of bytes."""
        size = 0
        for layer, cache in self.caches.items():
            copied = cache.index_select(list(cache.shape).index(self.blocks), torch.tensor(blocks))
            self.copies[job, layer] = copied
            size += copied.numel() * copied.element_size()
        with open(os.environ["KVTRACE_TEST_SPEC_LOG"], "a") as log:  # noqa: PTH123
            log.write(json.dumps({"job": job, "gpu": blocks, "bytes": size}) + "\n")
        return size

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass
