"""Sources ingested beside or instead of a recording: profiles, vLLM's KV events, files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError, needs_analysis
from kvtrace.format import layout
from kvtrace.format.manifest import read_facts
from kvtrace.ingest.guard import naming
from kvtrace.ingest.importers.options import Options

Progress = Callable[[str, int, int], None]
_File = tuple[int, str, Path]
_OTHERS = ("kv_events", "unboxkv", "sched_trace", "requests")
"""Kinds of files that are no profiles."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Files to ingest, by kind."""

    nsight: tuple[Path, ...] = ()
    nsight_of_run: tuple[Path, ...] = ()  # named by the run's manifest
    torch: tuple[Path, ...] = ()
    kv_events: tuple[Path, ...] = ()
    unboxkv: tuple[Path, ...] = ()  # files or folders of UnBoxKV-IO
    sched_trace: tuple[Path, ...] = ()
    requests: tuple[Path, ...] = ()
    options: Options = field(default_factory=Options)
    launch_shapes: bool = False  # read table gpu_launch_shape of Nsight exports, too

    def __bool__(self) -> bool:
        profiles = self.nsight or self.nsight_of_run or self.torch
        return bool(profiles or self.kv_events or self.unboxkv or self.sched_trace or self.requests)


def with_named_in_manifest(sources: Sources, run_dirs: Sequence[Path]) -> tuple[Sources, list[str]]:
    """Add the exports that the runs' manifests name; returns warnings about those that are not there."""
    given = {path.resolve() for path in sources.nsight}
    found, warnings = [], []
    for run_dir in run_dirs:
        named = (read_facts(run_dir) or {}).get("nsight")
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        for path in [run_dir / name for name in names]:
            if path.resolve() in given:
                continue
            if path.exists():
                found.append(path)
            else:
                warnings.append(
                    f"{run_dir / layout.MANIFEST} names {path.name}, which is not there; its kernels are missing"
                )
    return replace(sources, nsight_of_run=tuple(found)), warnings


def with_folders_searched(sources: Sources) -> tuple[Sources, list[str]]:
    """Put the files of folders in their place; returns warnings about what else is in those.

    Raises:
        KvtraceError: A folder or file has nothing of what it is given for.
    """
    if not sources.unboxkv:
        return sources, []
    from kvtrace.ingest.importers.unboxkv.load import find_files

    files, warnings = find_files(sources.unboxkv)
    return replace(sources, unboxkv=tuple(files)), warnings


def import_sources(
    connection: duckdb.DuckDBPyConnection, sources: Sources, progress: Progress
) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Read all sources into a trace that already holds the recording, if there is one.

    Returns:
        Name, matched and unmatched rows of each join; and warnings.

    Raises:
        KvtraceError: A source cannot be read.
    """
    if not sources:
        return [], []
    from kvtrace.ingest.gpu import finish, processes
    from kvtrace.ingest.gpu.attribute import Marked
    from kvtrace.ingest.gpu.copies import match_copies
    from kvtrace.ingest.gpu.kernels import KernelNames
    from kvtrace.ingest.gpu.refine import refine

    kernels = KernelNames()
    marked: dict[int, Marked] = {}
    joins: list[tuple[str, int, int]] = []
    files = _numbered(sources)
    paths = {source_id: path for source_id, _, path in files}
    warnings = _import_others(connection, [each for each in files if each[1] in _OTHERS], sources.options, progress)
    for source_id, kind, path in files:
        if kind in _OTHERS:
            continue
        if kind != "torch":
            with needs_analysis():
                from kvtrace.ingest.importers.nsight.load import load_export
            load = partial(load_export, launch_shapes=sources.launch_shapes)
        else:
            from kvtrace.ingest.importers.torch.load import load_torch_trace

            load = partial(load_torch_trace)
        try:
            with naming(path):
                marked[source_id], new = load(connection, source_id, path, kernels, progress)
        except KvtraceError as error:
            if kind == "nsight_of_run":
                raise KvtraceError(f"{error} (the run's manifest names it; --no-nsight leaves it out)") from error
            raise
        warnings += [*new, *processes.match_processes(connection, source_id, path.name)]
    kernels.insert(connection)
    for source_id, found in marked.items():
        progress("steps and layers", 0, 0)
        with naming(paths[source_id]):
            finish.finish_source(connection, source_id, found)
            if not refine(connection, source_id):
                finish.check_windows(connection, source_id)
            match_copies(connection, source_id)  # after the clocks are as right as they get
    if marked:
        joins += finish.count_joins(connection)
    if sources.kv_events and connection.execute("SELECT 1 FROM block_event LIMIT 1").fetchall():
        from kvtrace.ingest.importers.kv_events import compare

        joins += compare(connection)
    return joins, warnings


def _import_others(
    connection: duckdb.DuckDBPyConnection, files: list[_File], options: Options, progress: Progress
) -> list[str]:
    """Read what is no profile; returns warnings."""
    warnings: list[str] = []
    unboxkv = [(source_id, path) for source_id, kind, path in files if kind == "unboxkv"]
    if unboxkv:
        from kvtrace.ingest.importers.unboxkv.load import load_unboxkv

        with naming(unboxkv[0][1].parent if len(unboxkv) > 1 else unboxkv[0][1]):
            warnings += load_unboxkv(connection, unboxkv, options, progress)
    for source_id, kind, path in files:
        with naming(path):
            if kind == "kv_events":
                from kvtrace.ingest.importers.kv_events import load_kv_events

                warnings += load_kv_events(connection, source_id, path, progress)
            elif kind == "sched_trace":
                from kvtrace.ingest.importers.sched_trace.load import load_sched_trace

                warnings += load_sched_trace(connection, source_id, path, progress)
            elif kind == "requests":
                from kvtrace.ingest.importers.request_trace import load_request_trace

                warnings += load_request_trace(connection, source_id, path, options, progress)
    return warnings


def _numbered(sources: Sources) -> list[_File]:
    """Every file with its source id and kind."""
    kinds = {
        "nsight_of_run": sources.nsight_of_run,
        "nsight": sources.nsight,
        "torch": sources.torch,
        "kv_events": sources.kv_events,
        "unboxkv": sources.unboxkv,
        "sched_trace": sources.sched_trace,
        "requests": sources.requests,
    }
    files = [(kind, path) for kind, paths in kinds.items() for path in paths]
    if repeated := [path for index, (_, path) in enumerate(files) if path in [p for _, p in files[:index]]]:
        raise KvtraceError(f"{repeated[0]} was given twice")
    return [(source_id, kind, path) for source_id, (kind, path) in enumerate(files, 1)]
