"""Makes the directory of a new recording, and never deletes anything but an old recording."""

from __future__ import annotations

import fnmatch
import os
import shutil
import stat
import time
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.format.manifest import read_facts

_OWN = (
    *(layout.MANIFEST, f".{layout.MANIFEST}.tmp", layout.PROCESSES, "trace.duckdb*", ".trace.duckdb*", "trace.html"),
    *(f"{layout.PROFILE}.{ending}" for ending in ("nsys-rep", "sqlite", "qdstrm")),
    *(layout.NSYS_LOG, layout.COMMAND_PID, layout.CLIENT, layout.WORKLOAD, layout.BUDGET, layout.LOCK),
)
_OWN_OF_PROCESS = (
    *(layout.JOURNAL, layout.STRINGS, "strings.*.jsonl", layout.COUNTERS, "*.seg", "tiles.*.kvt", layout.KEPT),
    *(".*.seg.tmp", ".strings*.jsonl.tmp", f".{layout.KEPT}.tmp"),
)


def default_run_dir() -> Path:
    """A new directory's name in the working directory, after the local time."""
    name = time.strftime("kvtrace-run-%Y%m%d-%H%M%S")
    taken = (Path(name), *(Path(f"{name}-{number}") for number in range(2, 100)))
    return next((path for path in taken if not path.exists()), Path(name))


def make_run_dir(path: Path, *, force: bool) -> bool:
    """Make an empty run directory at `path`, with `force` in place of an older recording there, and take it.

    It is taken by an empty manifest, so that of two recordings that begin at once only one gets it.

    Returns:
        Whether the directory is new, rather than an existing one that was empty or emptied.

    Raises:
        KvtraceError: the place is taken, holds more than a recording, is still recorded to, or cannot be written.
    """
    try:
        path.mkdir(parents=True)
        _take(path)
        return True
    except FileExistsError:
        if not path.is_dir():
            raise KvtraceError(f"{path} is a file, not a run directory. Use -o to name another.", 2) from None
    except OSError as error:
        raise KvtraceError(
            f"Cannot make the run directory {path}: {error.strerror}. Use -o to record in another place.", 2
        ) from error
    try:
        if any(path.iterdir()):
            if not force:
                raise KvtraceError(
                    f"{path} exists and is not empty. Use -o to name another, or --force to replace a recording.", 2
                )
            _empty(path)
        _take(path)
    except FileExistsError:
        raise KvtraceError(f"{path} was just taken by another recording. Use -o to name another.", 2) from None
    except OSError as error:
        raise KvtraceError(
            f"Cannot use the run directory {path}: {error.strerror}. Use -o to name another.", 2
        ) from error
    return False


def _take(path: Path) -> None:
    os.close(os.open(path / layout.MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def _empty(path: Path) -> None:
    facts = read_facts(path)
    if facts is None and not any((path / layout.PROCESSES).glob(f"*/{layout.JOURNAL}")):
        raise KvtraceError(
            f"{path} does not look like a run directory: it has no {layout.MANIFEST}. "
            f"--force replaces only recordings; use -o to name another.",
            2,
        )
    foreign = _foreign_entries(path)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise KvtraceError(
            f"{path} holds more than a recording ({foreign[0]}{more}). "
            f"Move that away, or use -o to name another directory.",
            2,
        )
    pid = facts.get("pid") if facts and "ended_ns" not in facts else None
    if isinstance(pid, int) and Path(f"/proc/{pid}").exists():
        raise KvtraceError(
            f"{path} seems to be in use: its command, process {pid}, still runs. Stop it, or use -o to name another.",
            2,
        )
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _foreign_entries(path: Path) -> list[str]:
    """Return what --force would delete without being part of a recording, relative to `path`."""
    foreign = [entry.name for entry in path.iterdir() if not _is_own(entry, _OWN, path / layout.PROCESSES)]
    processes = path / layout.PROCESSES
    if not foreign and processes.exists():
        for process in processes.iterdir():
            entries = [process] if process.is_symlink() or not process.is_dir() else process.iterdir()
            foreign += [str(entry.relative_to(path)) for entry in entries if not _is_own(entry, _OWN_OF_PROCESS)]
    return sorted(foreign)


def _is_own(entry: Path, names: tuple[str, ...], directory: Path | None = None) -> bool:
    mode = os.lstat(entry).st_mode
    kind_fits = stat.S_ISDIR(mode) if entry == directory else stat.S_ISREG(mode)
    return kind_fits and any(fnmatch.fnmatchcase(entry.name, name) for name in names)
