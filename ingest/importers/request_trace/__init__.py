"""The importer of request traces: what was asked of an engine and when, by several makers."""

from __future__ import annotations

from pathlib import Path

from kvtrace.ingest.importers.importer import Importer, Target


def _load(target: Target, source_id: int, path: Path) -> list[str]:
    from kvtrace.ingest.importers.request_trace.load import load_requests

    return load_requests(target, source_id, path)


def _recognises(path: Path, head: bytes) -> bool:
    from kvtrace.ingest.importers.request_trace.formats import format_of

    lines = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n").splitlines()
    return bool(lines) and format_of(lines[0].strip()) is not None


IMPORTER = Importer(
    kind="requests",
    option="--requests",
    help="A request trace: Mooncake, Bailian, Dynamo, vllm-vcr (.jsonl), Azure or BurstGPT (.csv)",
    says="arrivals, prompt and output tokens; where the format has them, block hashes, sessions and latencies",
    lacks="what an engine did: no lookups, steps or blocks",
    recognises=_recognises,
    load=_load,
)
