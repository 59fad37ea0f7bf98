"""The formats of request traces, told apart by a file's first line."""

from __future__ import annotations

import json

from kvtrace.ingest.importers.request_trace.csvs import Azure, BurstGpt, heading
from kvtrace.ingest.importers.request_trace.dynamo import Dynamo, unwrapped
from kvtrace.ingest.importers.request_trace.format import Format
from kvtrace.ingest.importers.request_trace.hashed import Bailian, Mooncake
from kvtrace.ingest.importers.request_trace.vcr import Vcr

EXPECTED = (
    "expected a request trace: Mooncake's, Qwen-Bailian's, Dynamo's or vllm-vcr's (a JSON object a line), "
    "Azure's or BurstGPT's (CSV)"
)


def format_of(text: str) -> Format | None:
    """The format that a file has if this is its first line; None if none of them."""
    if not text.startswith("{"):
        columns = heading(text)
        csv = next((kind for kind in (Azure, BurstGpt) if kind.needs <= columns.keys()), None)
        return None if csv is None else csv(columns)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if Dynamo.is_record(unwrapped(found)):
        return Dynamo()
    if {"timestamp", "input_length"} <= found.keys():
        return Bailian() if "chat_id" in found or "parent_chat_id" in found else Mooncake()
    return Vcr() if Vcr.is_record(found) else None
