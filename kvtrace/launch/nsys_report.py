"""Exports nsys's report to a SQLite file that `kvtrace ingest` reads."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvtrace.format import layout
from kvtrace.launch.nsys import Nsys

_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (\S+):")
_PACKAGES = {"libdw.so.1": "libdw1 on Debian and Ubuntu, elfutils-libs elsewhere", "libelf.so.1": "libelf1"}
_NOT_WORDS = ("usage:", "Try ", "Processing ", "[1/1]")


@dataclass(frozen=True)
class Report:
    """The SQLite file, or why there is none and what to do; one of them is None."""

    sqlite: Path | None
    problem: str | None


class _Step(NamedTuple):
    command: list[str]
    makes: Path


def finish_report(nsys: Nsys, run_dir: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> Report:
    """Bring what nsys collected to SQLite, by way of its importer if nsys did not get so far itself.

    What the tools print goes to the run directory's nsys.log. Ctrl-C ends them. `say` is told what is being done.
    """
    collected, report, sqlite = (run_dir / f"{layout.PROFILE}.{ending}" for ending in ("qdstrm", "nsys-rep", "sqlite"))
    log = run_dir / layout.NSYS_LOG
    steps = [_export(nsys, report, sqlite)]
    if not report.exists():
        if not collected.exists():
            return Report(None, f"nsys left no report in {run_dir}: {last_words(log)}. Its output is in {log}.")
        importer = nsys.importer
        steps.insert(0, _Step([str(importer or "QdstrmImporter"), "-i", str(collected), "-o", str(report)], report))
        if importer is None:
            found = f"nsys left {collected} unfinished, and no QdstrmImporter is beside {nsys.program}"
            return Report(None, f"{found}. {_by_hand(steps, run_dir)}")
    for done, step in enumerate(steps):
        say(f"nsys: making {step.makes}")
        problem = _run(step, environment, log)
        if problem:
            return Report(None, f"{Path(step.command[0]).name} {problem}. {_by_hand(steps[done:], run_dir)}")
    collected.unlink(missing_ok=True)
    return Report(sqlite, None)


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    with suppress(OSError):
        lines = [line.strip() for line in re.split(r"[\r\n]+", log.read_text(errors="replace"))]
        words = [line for line in lines if line and not line.startswith(_NOT_WORDS)]
        if words:
            return words[-1].rstrip(".")
    return "it printed nothing"


def _export(nsys: Nsys, report: Path, sqlite: Path) -> _Step:
    options = ["--type", "sqlite", "--force-overwrite", "true", "--output", str(sqlite)]
    return _Step([str(nsys.program), "export", *options, str(report)], sqlite)


def _by_hand(steps: Sequence[_Step], run_dir: Path) -> str:
    ingest = ["kvtrace", "ingest", str(run_dir), "--nsight", str(steps[-1].makes)]
    return "By hand: " + " && ".join(map(shlex.join, [*(step.command for step in steps), ingest]))


def _run(step: _Step, environment: Mapping[str, str], log: Path) -> str | None:
    """Run a tool to its end; None if it made what it should, else what became of it. Half of it is thrown away."""
    start = log.stat().st_size if log.exists() else 0
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:  # its signals are not blocked, as this process's are: Ctrl-C is for it
        pid = os.posix_spawn(step.command[0], step.command, environment, file_actions=streams, setsigmask=())
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0 and step.makes.exists():
        return None
    step.makes.unlink(missing_ok=True)
    missing = _MISSING_LIBRARY.search(log.read_bytes()[start:].decode(errors="replace"))
    if missing:
        package = f"(package {_PACKAGES[missing[1]]}) " if missing[1] in _PACKAGES else ""
        return f"needs {missing[1]}: install it {package}or add its folder to LD_LIBRARY_PATH"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"failed with exit code {code}, see {log}" if code else f"made no {step.makes.name}, see {log}"
