"""NVIDIA Dynamo's request traces (`dynamo.request.trace.v1`): a record a finished request.

Hashes cover the tokens before them, too, the last one also those of a block that is not full. Payloads (prompts and
answers) and what tools did are counted and never read.
"""

from __future__ import annotations

from typing import Any

from kvtrace.ingest.append import nanoseconds
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

SCHEMA = "dynamo.request.trace.v1"


def unwrapped(found: dict[str, Any]) -> dict[str, Any]:
    """The record itself: some sinks put it into {"timestamp": ..., "event": ...}."""
    event = found.get("event")
    return event if isinstance(event, dict) and "timestamp" in found else found


class Dynamo(Format):
    """A record a line, of kind `event_type`."""

    says = "Dynamo: UNIX times in ms"
    block_tokens_told = True

    def __init__(self) -> None:
        super().__init__()
        self._sizes: set[int] = set()

    @staticmethod
    def is_record(found: dict[str, Any]) -> bool:
        """Say whether an object is a record."""
        return found.get("schema") == SCHEMA

    def read(self, text: str) -> Asked | None:
        """The request of a record; None if it is of something else."""
        record = unwrapped(json_object(text))
        if not self.is_record(record):
            raise ValueError(f"schema is {record.get('schema')!r:.40}, not {SCHEMA}")
        event = str(record.get("event_type"))[:40]
        if event != "request_end":
            self.others[event] += 1
            return None
        request = _object(record, "request")
        replay = _object(request, "replay") if request.get("replay") is not None else {}
        received = request["request_received_ms"]
        arrival_ns = time_of(received, nanoseconds(received, 1e6), "request_received_ms")
        first_ns = nanoseconds(request.get("ttft_ms"), 1e6)
        chain = hashes(replay.get("input_sequence_hashes"), "input_sequence_hashes")
        if chain:
            size = count(replay, "trace_block_size")
            if not size:
                raise ValueError("trace_block_size is 0")
            self._sizes.add(size)
            self.block_tokens = self.block_tokens or size
        context = record.get("agent_context")
        session = context.get("session_id") if isinstance(context, dict) else None
        self.model = self.model or _text(request.get("model"))
        meta = request.get("finish_reason_metadata")
        return Asked(
            arrival_ns,
            count(replay, "input_length") if replay else count(request, "input_tokens"),
            count_or_none(request, "output_tokens"),
            chain,
            external_id=_text(request.get("request_id")),
            session=_text(session),
            first_token_ns=None if first_ns is None else arrival_ns + first_ns,
            finished_ns=nanoseconds(record.get("event_time_unix_ms"), 1e6),
            finish_reason=finish_reason(meta.get("finish_reason")) if isinstance(meta, dict) else None,
            cached_tokens=count_or_none(request, "cached_tokens"),
        )

    def notes(self) -> list[str]:
        """Block sizes that differ."""
        if len(self._sizes) < 2:
            return []
        return [f"hashes cover {', '.join(map(str, sorted(self._sizes)))} tokens; {self.block_tokens} is kept"]


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found = fields[name]
    if not isinstance(found, dict):
        raise TypeError(f"{name} is no JSON object")
    return found


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:500]
