"""Snapshots of a running recording: a run directory of its own, with the records of this moment."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.format.manifest import read_facts
from kvtrace.format.reader import segment_names, string_files, tile_files
from kvtrace.format.segment import read_segment
from kvtrace.retention.retention import locked


def snapshot_name(run_dir: Path) -> Path:
    """A new directory's name beside the run, after the local time."""
    first = run_dir.with_name(f"{run_dir.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    taken = (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 1000)))
    return next((path for path in taken if not path.exists()), first)


def snapshot(run_dir: Path, copy: Path) -> Path:
    """Freeze `run_dir` in a new directory `copy`. Files that do not change any more are hard links, if possible.

    Records that are being written at this moment may be missing, as if the processes had been killed now.

    Raises:
        KvtraceError: `run_dir` is no recording, or `copy` exists or cannot be written.
    """
    processes = run_dir / layout.PROCESSES
    if not processes.is_dir():
        raise KvtraceError(f"{run_dir} holds no recording: it has no {layout.PROCESSES}/ yet")
    partial = copy.with_name(f".{copy.name}.part")
    try:
        if copy.exists():
            raise KvtraceError(f"{copy} exists; name another directory with -o")
        (partial / layout.PROCESSES).mkdir(parents=True)
        is_kept = (run_dir / layout.LOCK).exists()
        with locked(run_dir) if is_kept else nullcontext():
            for process in sorted(path for path in processes.iterdir() if path.is_dir()):
                _freeze(process, partial / layout.PROCESSES / process.name)
        for name in (layout.CLIENT, layout.WORKLOAD):
            with suppress(FileNotFoundError):
                shutil.copyfile(run_dir / name, partial / name)
        _write_manifest(run_dir, partial)
        partial.rename(copy)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise KvtraceError(
            f"Cannot copy {run_dir} to {copy}: {error.strerror or error}. Use -o to name another."
        ) from error
    return copy


def _freeze(process: Path, copy: Path) -> None:
    copy.mkdir()
    for path, is_closed in _data_files(process):
        if is_closed:
            _link(path, copy / path.name)
        else:
            _copy_while_written(path, copy / path.name)
    # Names and facts last, so that none of those that the records need is missing.
    names = [path.name for _, path in string_files(process)]
    for name in (*names, layout.JOURNAL, layout.COUNTERS, layout.KEPT):
        with suppress(FileNotFoundError):
            shutil.copyfile(process / name, copy / name)


def _copy_while_written(path: Path, copy: Path) -> None:
    """Copy a file that grows. Records that were not finished before are left out.

    A record's front is copied before its last byte, so one that is finished meanwhile would look whole.
    """
    segment = None
    with suppress(KvtraceError):
        segment = read_segment(path) if path.suffix == ".seg" else None
    finished = segment.committed_estimate() if segment else 0
    shutil.copyfile(path, copy)
    if segment:
        os.truncate(copy, layout.SEGMENT_HEADER_BYTES + finished * segment.record_bytes)
        os.truncate(copy, segment.file_bytes)


def _data_files(process: Path) -> Iterator[tuple[Path, bool]]:
    """Segments and files of tiles, and whether their process has gone on to the next."""
    for event, sequences in segment_names(process).items():
        for sequence in sequences:
            yield process / layout.segment_name(event, sequence), sequence < sequences[-1]
    tiles = tile_files(process)
    for sequence, path in tiles:
        yield path, sequence < tiles[-1][0]


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        shutil.copyfile(path, link)


def _write_manifest(run_dir: Path, copy: Path) -> None:
    """The run's manifest, and when it was frozen. Whether the command still runs is nothing to the copy."""
    facts = read_facts(run_dir) or {"format_version": layout.FORMAT_VERSION}
    facts = {key: value for key, value in facts.items() if key != "pid"} | {"frozen_ns": time.time_ns()}
    (copy / layout.MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
