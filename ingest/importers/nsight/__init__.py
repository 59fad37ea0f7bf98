"""The importer of Nsight Systems exports."""

from __future__ import annotations

from pathlib import Path

from kvtrace.errors import needs_analysis
from kvtrace.ingest.importers.importer import Importer, Target


def _load(target: Target, source_id: int, path: Path) -> list[str]:
    with needs_analysis():
        from kvtrace.ingest.importers.nsight.load import load_export
    return load_export(target, source_id, path)


IMPORTER = Importer(
    kind="nsight",
    option="--nsight",
    help="An Nsight Systems export (.sqlite)",
    says="kernels, copies, CUDA calls, NVTX ranges, OS calls, GPU metrics",
    lacks="steps, requests and blocks without a recording beside it",
    recognises=lambda path, head: head.startswith(b"SQLite format 3\0"),
    load=_load,
    is_profile=True,
)
