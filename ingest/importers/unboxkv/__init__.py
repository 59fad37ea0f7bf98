"""The importer of UnBoxKV-IO's files: KV patterns, CSVs and logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.importer import Importer, Target


def _load(target: Target, files: Sequence[tuple[int, Path]]) -> list[str]:
    from kvtrace.ingest.importers.unboxkv.load import load_unboxkv

    return load_unboxkv(target.connection, list(files), target.options, target.progress)


def _find_files(given: Iterable[Path]) -> tuple[list[Path], list[str]]:
    from kvtrace.ingest.importers.unboxkv.load import find_files

    return find_files(given)


def _recognises(path: Path, head: bytes) -> bool:
    from kvtrace.ingest.importers.unboxkv.load import kind_of

    try:
        return bool(kind_of(path))
    except KvtraceError:
        return False


IMPORTER = Importer(
    kind="unboxkv",
    option="--unboxkv",
    metavar="PATH",
    help="Patterns, CSVs and logs of UnBoxKV-IO, or their folder",
    says="which block was read and written when, by layer; utilisation, steps and settings",
    lacks="names of requests, prefix caching, kernels",
    recognises=_recognises,
    load_together=_load,
    find_files=_find_files,
)
