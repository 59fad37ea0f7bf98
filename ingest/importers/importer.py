"""The declaration of an importer: the command line, ingest, table `source` and docs/importers.md read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.ingest.importers.options import Options

if TYPE_CHECKING:
    import duckdb

Progress = Callable[[str, int, int], None]
"""Called with the activity, what is done, and an estimate of all of it."""

Join = tuple[str, int, int]
"""A join's name, its matched and its unmatched rows."""


@dataclass(frozen=True)
class Target:
    """The trace that an importer fills, and what the user said about its files.

    Attributes:
        connection: The trace, with all its tables.
        options: Facts that files do not say themselves.
        progress: Called now and then with a label, rows done and rows in all.
        kernels: Hands out the keys of table `kernel_name` (`ingest.gpu.kernels.KernelNames`).
        profiles: By `source_id` of a profile: the ranges of kvtrace in it, and how its times become UNIX time
            (`ingest.gpu.attribute.Marked`). Ingest joins each profile that is in it to steps and layers.
    """

    connection: duckdb.DuckDBPyConnection
    options: Options
    progress: Progress
    kernels: Any
    profiles: dict[int, Any] = field(default_factory=dict)


Load = Callable[[Target, int, Path], list[str]]
LoadTogether = Callable[[Target, Sequence[tuple[int, Path]]], list[str]]


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One kind of file that `kvtrace ingest` reads.

    Attributes:
        kind: Value of column `source.kind`, and keyword of `Sources`.
        option: Option of `kvtrace ingest` that takes such files.
        metavar: What the option takes: FILE, or PATH where folders are taken, too.
        help: Help of the option, without a full stop.
        says: What such a file tells, for docs/importers.md.
        lacks: What it cannot tell.
        recognises: Tells such a file by its path and the first bytes of its content, unpacked.
        load: Reads a file, given its `source_id`, into the tables; returns warnings. Raises KvtraceError.
        load_together: Takes its place where several files make a run: gets all of them.
        find_files: Turns the paths given into files, folders searched; returns the files, and warnings.
        compare: Joins that need all sources; called once, where such a file was ingested.
        is_profile: Its files are what GPUs did. Profiles are read after all others.
    """

    kind: str
    option: str
    metavar: str = "FILE"
    help: str
    says: str
    lacks: str
    recognises: Callable[[Path, bytes], bool]
    load: Load | None = None
    load_together: LoadTogether | None = None
    find_files: Callable[[Iterable[Path]], tuple[list[Path], list[str]]] | None = None
    compare: Callable[[duckdb.DuckDBPyConnection], list[Join]] | None = None
    is_profile: bool = False

    def read(self, target: Target, files: Sequence[tuple[int, Path]]) -> list[str]:
        """Read files with their source ids, one by one or together; returns warnings."""
        if self.load_together is not None:
            return self.load_together(target, files)
        assert self.load is not None
        return [warning for source_id, path in files for warning in self.load(target, source_id, path)]


def first_object(head: bytes) -> Mapping[str, Any]:
    """The JSON object on the first line of a file's head; empty if there is none."""
    import json

    lines = head.lstrip(b"\xef\xbb\xbf \t\r\n").splitlines()
    try:
        found = json.loads(lines[0]) if lines else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
