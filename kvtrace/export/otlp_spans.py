"""Spans as OpenTelemetry's JSON has them: hexadecimal ids, 64-bit numbers as text, attributes with their types.

Names of attributes follow OpenTelemetry's semantic conventions (`gen_ai.*`, `service.*`, `host.*`, `process.*`) where
they have one, and else begin with `kvtrace.`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

INTERNAL, SERVER = 1, 2
_ERROR = 2
_FAILED = ("abort", "error")

GEN_AI = {
    "model": "gen_ai.request.model",
    "max_tokens": "gen_ai.request.max_tokens",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "session": "gen_ai.conversation.id",
    "external_id": "gen_ai.response.id",
    "finish_reasons": "gen_ai.response.finish_reasons",
}
"""Our columns by OpenTelemetry's names."""

Span = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """A span's ids, made of what it is: the same in every export, and found without looking it up."""

    trace: str
    span: str


def key(trace: Iterable[object], span: Iterable[object] = ()) -> Key:
    """The ids of a span in a trace; without `span` those of its root."""
    name = "\0".join(map(str, trace))
    root = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=24).hexdigest()
    place = "\0".join(map(str, span))
    if not place:
        return Key(root[:32], root[32:])
    inner = hashlib.blake2b(f"{name}\0\0{place}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Key(root[:32], inner)


def span(
    identity: Key,
    name: str,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Any],
    *,
    parent: Key | None = None,
    kind: int = INTERNAL,
    links: Iterable[Key] = (),
    dropped_links: int = 0,
) -> Span:
    """A span.

    Args:
        identity: The ids of its trace and of itself.
        name: Its name.
        start_ns: UNIX nanoseconds.
        end_ns: UNIX nanoseconds; one before the start becomes the start.
        attributes: Attributes; None values are left out.
        parent: The span that it is part of.
        kind: OpenTelemetry's number of a kind.
        links: Spans that belong to it.
        dropped_links: Links that were left out.
    """
    made: Span = {
        "traceId": identity.trace,
        "spanId": identity.span,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(max(start_ns, end_ns)),
        "attributes": attribute_list(attributes),
    }
    if parent:
        made["parentSpanId"] = parent.span
    if linked := [{"traceId": link.trace, "spanId": link.span} for link in links]:
        made["links"] = linked
    if dropped_links:
        made["droppedLinksCount"] = dropped_links
    if (reason := attributes.get("kvtrace.finish_reason")) in _FAILED:
        made["status"] = {"code": _ERROR, "message": str(reason)}
    return made


def attribute_list(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes; those without a value are left out."""
    return [{"key": name, "value": _value(value)} for name, value in attributes.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
