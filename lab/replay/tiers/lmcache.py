"""The model of a tier that asks and stores as LMCache 0.5.6 does. With LMCache's recorded times it repeats its steps.

- It has what is there from a prompt's first token on, also where the GPU has the beginning: without the first chunk it
  has nothing.
- A request is asked about once, when vLLM's scheduler first looks at it. The answer is kept, and what was found kept in
  the tier, until the request is scheduled.
- That question counts all that was found as used. Storing does not.
- All chunks behind those that were found are stored, also those that are there: each takes room for a while, for which
  another chunk goes.
- Of a step's requests those that are new store first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrace.lab.replay.tiers.connector import TierConnector


class LMCacheTier(TierConnector):
    """A tier of chunks as LMCache keeps one in host memory."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._answers: dict[str, list[bytes]] = {}  # chunks by request

    def _found(self, request: Any, first: int, usable: int) -> int:
        if (chunks := self._answers.get(request.request_id)) is None:
            chunks = self._answers[request.request_id] = self._from_the_first(request)
            self.store.load(chunks)
        return int(min(len(chunks) * self._chunk, usable))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Queue the copy of what was matched. The answer is of no use any more."""
        answer = self._answers.pop(request.request_id, [])
        self._matched_chunks += answer
        self._looked_at.setdefault(request.request_id, len(answer))
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Forget the answer to a request that was never scheduled."""
        self.store.loaded(self._answers.pop(request.request_id, []))
        return super().request_finished(request, block_ids)

    def _from_the_first(self, request: Any) -> list[bytes]:
        chunks: list[bytes] = []
        while (chunk := self._key(request, len(chunks))) and self.store.holds(chunk):
            chunks.append(chunk)
        return chunks

    def _storing_order(self, scheduler_output: Any) -> Sequence[str]:
        new = dict.fromkeys(request.req_id for request in scheduler_output.scheduled_new_reqs)
        return [*new | dict.fromkeys(scheduler_output.num_scheduled_tokens)]

    def _take_room(self, chunks: list[bytes]) -> list[bytes]:
        return self.store.reserve_again(chunks)
