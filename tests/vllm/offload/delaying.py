"""vLLM's ExampleConnector, saying of every finished request that it is still being saved, for one more step."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector


class DelayingConnector(ExampleConnector):
    saving: frozenset[str] = frozenset()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return True, None

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        saved, self.saving = self.saving, frozenset(finished_req_ids)
        return set(saved) or None, None
