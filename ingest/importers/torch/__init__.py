"""The importer of PyTorch profiler traces."""

from __future__ import annotations

from pathlib import Path

from kvtrace.ingest.importers.importer import Importer, Target


def _load(target: Target, source_id: int, path: Path) -> list[str]:
    from kvtrace.ingest.importers.torch.load import load_torch_trace

    return load_torch_trace(target, source_id, path)


def _recognises(path: Path, head: bytes) -> bool:
    return b'"traceEvents"' in head or (b'"schemaVersion"' in head and b'"deviceProperties"' in head)


IMPORTER = Importer(
    kind="torch",
    option="--torch-trace",
    help="A PyTorch profiler trace (.json, .json.gz)",
    says="kernels, copies, runtime calls, host operators",
    lacks="steps, requests and blocks without a recording beside it",
    recognises=_recognises,
    load=_load,
    is_profile=True,
)
