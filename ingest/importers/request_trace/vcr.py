"""vllm-vcr's traces: what it saw between vLLM's frontend and its engine, a line a finished request.

The first line may tell of the run ({"meta": ...}). Hashes are of full blocks and cover all tokens before them. Token
ids are never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from kvtrace.ingest.append import nanoseconds, whole
from kvtrace.ingest.importers.request_trace.format import (
    Asked,
    Format,
    count,
    count_or_none,
    hashes,
    json_object,
    time_of,
)
from kvtrace.ingest.importers.request_trace.reasons import finish_reason

_KNOWN = {
    "prompt_tokens", "cached_tokens", "output_tokens", "ttft_ms", "itl_ms", "itl_tokens", "itl_summary", "concurrency",
    "arrival_ms", "itl_ctx", "block_hashes", "mm_hashes", "output_token_ids", "finish_reason",
}  # fmt: skip


class Vcr(Format):
    """A line about the run, then a request a line, in the order in which they ended."""

    says = "vllm-vcr: times in ms"
    hashes_partial_blocks = False

    def __init__(self) -> None:
        super().__init__()
        self._without_arrival = 0

    @staticmethod
    def is_record(found: dict[str, Any]) -> bool:
        """Say whether an object is one of the lines."""
        return isinstance(found.get("meta"), dict) or {"prompt_tokens", "output_tokens", "ttft_ms"} <= found.keys()

    def read(self, text: str) -> Asked | None:
        """The request of a line; None if it tells of the run."""
        fields = json_object(text)
        if "meta" in fields:
            self._describe(fields["meta"])
            return None
        self.unknown.update(fields.keys() - _KNOWN)
        prompt, output = count(fields, "prompt_tokens"), count(fields, "output_tokens")
        given = fields.get("arrival_ms")
        arrival_ns = None if given is None else time_of(given, nanoseconds(given, 1e6), "arrival_ms")
        self._without_arrival += arrival_ns is None
        asked = Asked(
            arrival_ns, prompt, output, hashes(fields.get("block_hashes"), "block_hashes"),
            finish_reason=finish_reason(fields.get("finish_reason")),
            cached_tokens=count_or_none(fields, "cached_tokens"),
        )  # fmt: skip
        return asked if arrival_ns is None else self._with_times(asked, arrival_ns, fields)

    def _with_times(self, asked: Asked, arrival_ns: int, fields: dict[str, Any]) -> Asked:
        """With the times of its tokens, from the gaps between them."""
        first = _gap(fields["ttft_ms"], "ttft_ms")
        gaps = fields.get("itl_ms")
        if not isinstance(gaps, list):
            whole_output = asked.output_tokens is not None and asked.output_tokens <= 1
            end = arrival_ns + first if whole_output else None
            return asked._replace(first_token_ns=arrival_ns + first, finished_ns=end)
        times = list(accumulate((_gap(gap, "itl_ms") for gap in gaps), initial=arrival_ns + first))
        each = _tokens_of(fields.get("itl_tokens"), len(gaps), asked.output_tokens or 0)
        token_ns = [time for time, tokens in zip(times, each, strict=True) for _ in range(tokens)]
        return asked._replace(first_token_ns=times[0], finished_ns=times[-1], token_ns=token_ns)

    def _describe(self, meta: object) -> None:
        if not isinstance(meta, dict):
            raise TypeError("meta is no JSON object")
        size = whole(meta.get("block_size"))
        if size is not None and size > 0:
            self.block_tokens, self.block_tokens_told = size, True
        model = meta.get("model")
        self.model = None if model is None else str(model)[:500]

    def notes(self) -> list[str]:
        """Say what requests lack."""
        if not self._without_arrival:
            return []
        return [f"{self._without_arrival} requests have no arrival_ms: when they came is not known"]


def _gap(value: object, name: str) -> int:
    found = nanoseconds(value, 1e6)
    if found is None or found < 0:
        raise ValueError(f"{name} is {value!r:.40}, no duration")
    return found


def _tokens_of(told: object, gaps: int, output: int) -> Iterable[int]:
    """How many tokens came at each time: one, or as many as `itl_tokens` says, the first time the others."""
    if told is None:
        return [1] * (gaps + 1)
    if not isinstance(told, list) or len(told) != gaps:
        raise ValueError("itl_tokens and itl_ms have different lengths")
    later = [found for each in told if (found := whole(each)) is not None and found >= 0]
    first = output - sum(later)
    if len(later) != gaps or first < 0:
        raise ValueError("itl_tokens does not add up to output_tokens")
    return [first, *later]
