"""A connector that says it supplies states that are not cached, as NIXL and MoRIIO do for Mamba. It copies nothing."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

SUPPLIED = 32
"""Tokens beyond the local hit, for requests tagged `...-supplied`."""


class StateConnector(KVConnectorBase_V1, SupportsHMA):
    """Both sides of it."""

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return True

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        supplies = str(request.sampling_params.extra_args["kvtrace_session"]).endswith("-supplied")
        lacking = request.num_tokens - 1 - num_computed_tokens
        return max(0, min(SUPPLIED, lacking)) if supplies else 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return
