"""Sources ingested beside or instead of a recording: profiles, vLLM's KV events, files of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.format.manifest import read_facts
from kvtrace.ingest.guard import naming
from kvtrace.ingest.importers.importer import Importer, Join, Progress, Target
from kvtrace.ingest.importers.options import Options
from kvtrace.ingest.importers.registry import all_importers


@dataclass(frozen=True)
class SourceFile:
    """A file to ingest; `of_run` if the manifest of a run names it."""

    importer: Importer
    path: Path
    of_run: bool = False


@dataclass(frozen=True, init=False)
class Sources:
    """Files to ingest.

    Args:
        options: Facts that the files do not say themselves.
        files: Files by kind (`Importer.kind`): `Sources(nsight=(path,))`.

    Raises:
        KvtraceError: There is no importer of such a kind.
    """

    files: tuple[SourceFile, ...]
    options: Options

    def __init__(self, *, options: Options | None = None, **files: Sequence[Path]) -> None:
        importers = all_importers()
        if unknown := sorted(files.keys() - importers.keys()):
            raise KvtraceError(f"there is no importer of {unknown[0]}; expected one of {', '.join(importers)}")
        given = (SourceFile(importers[kind], path) for kind, paths in files.items() for path in paths)
        object.__setattr__(self, "files", tuple(given))
        object.__setattr__(self, "options", options or Options())

    def __bool__(self) -> bool:
        return bool(self.files)

    def with_files(self, files: Sequence[SourceFile]) -> Sources:
        """The same with other files."""
        changed = Sources(options=self.options)
        object.__setattr__(changed, "files", tuple(files))
        return changed


def with_named_in_manifest(sources: Sources, run_dirs: Sequence[Path]) -> tuple[Sources, list[str]]:
    """Add the exports that the runs' manifests name; returns warnings about those that are not there."""
    nsight = all_importers()["nsight"]
    given = {file.path.resolve() for file in sources.files if file.importer is nsight}
    found, warnings = [], []
    for run_dir in run_dirs:
        named = (read_facts(run_dir) or {}).get("nsight")
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        for path in [run_dir / name for name in names]:
            if path.resolve() in given:
                continue
            if path.exists():
                found.append(SourceFile(nsight, path, of_run=True))
            else:
                warnings.append(
                    f"{run_dir / layout.MANIFEST} names {path.name}, which is not there; its kernels are missing"
                )
    return sources.with_files((*found, *sources.files)), warnings


def with_folders_searched(sources: Sources) -> tuple[Sources, list[str]]:
    """Put the files of folders in their place; returns warnings about what else is in those.

    Raises:
        KvtraceError: A folder or file has nothing of what it is given for.
    """
    files, warnings = [], []
    for importer, paths in _by_importer(sources):
        if importer.find_files is None:
            files += paths
            continue
        found, new = importer.find_files([file.path for file in paths])
        files += [replace(paths[0], path=path) for path in found]
        warnings += new
    return sources.with_files(files), warnings


def _by_importer(sources: Sources) -> Iterator[tuple[Importer, list[SourceFile]]]:
    for importer in all_importers().values():
        if files := [file for file in sources.files if file.importer is importer]:
            yield importer, files


def import_sources(
    connection: duckdb.DuckDBPyConnection, sources: Sources, progress: Progress
) -> tuple[list[Join], list[str]]:
    """Read all sources into a trace that already holds the recording, if there is one.

    Returns:
        The joins, and warnings.

    Raises:
        KvtraceError: A source cannot be read.
    """
    if not sources:
        return [], []
    from kvtrace.ingest.gpu import finish
    from kvtrace.ingest.gpu.kernels import KernelNames

    target = Target(connection, sources.options, progress, KernelNames())
    files = list(enumerate(_once_each(sources), 1))
    warnings: list[str] = []
    present = [importer for importer, _ in _by_importer(sources)]
    for importer in sorted(present, key=lambda importer: importer.is_profile):
        of_kind = [(source_id, file) for source_id, file in files if file.importer is importer]
        for batch in [of_kind] if importer.load_together else [[each] for each in of_kind]:
            warnings += _read(target, importer, batch)
    target.kernels.insert(connection)
    joins = finish.finish_profiles(target, {source_id: file.path for source_id, file in files})
    for importer in present:
        joins += importer.compare(connection) if importer.compare else []
    return joins, warnings


def _read(target: Target, importer: Importer, files: list[tuple[int, SourceFile]]) -> list[str]:
    from kvtrace.ingest.gpu import processes

    paths = [(source_id, file.path) for source_id, file in files]
    try:
        with naming(paths[0][1].parent if len(paths) > 1 else paths[0][1]):
            warnings = importer.read(target, paths)
    except KvtraceError as error:
        if files[0][1].of_run:
            raise KvtraceError(f"{error} (the run's manifest names it; --no-nsight leaves it out)") from error
        raise
    for source_id, path in paths:
        if source_id in target.profiles:
            warnings += processes.match_processes(target.connection, source_id, path.name)
    return warnings


def _once_each(sources: Sources) -> list[SourceFile]:
    """The files in the order of their source ids.

    Raises:
        KvtraceError: A file was given twice.
    """
    paths = [file.path for file in sources.files]
    if repeated := [path for index, path in enumerate(paths) if path in paths[:index]]:
        raise KvtraceError(f"{repeated[0]} was given twice")
    return list(sources.files)
