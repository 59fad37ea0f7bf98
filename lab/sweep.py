"""Runs the cells of matrices, each under `kvtrace record`; what is done stays done.

DIR/studies/NAME.json          a matrix: its axes, its cells in order
DIR/cells/ID/cell.json         what a cell is
DIR/cells/ID/run/              its run directory, with client.jsonl and workload.json
DIR/cells/ID/log.txt           what it printed
DIR/cells/ID/facts.json        what its process found: software, device, phases
DIR/cells/ID/result.json       how it ended; without it, it will run (again)
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.lab.cell import CELL, FACTS
from kvtrace.lab.lifetime import dies_with_us
from kvtrace.lab.matrix import Cell, Matrix, text_of
from kvtrace.lab.policies import gave_up, policy_label, policy_of
from kvtrace.lab.turn import hold, is_ready, let_go
from kvtrace.lab.warm import started

RESULT, LOG, RUN = "result.json", "log.txt", "run"
_LOCK_PATIENCE_S = 30.0
_END_PATIENCE_S = 15.0
_TAIL_CHARACTERS = 600
_LOOK_S = 0.05
_POINTS_UP = "See root cause above"
"""In the error of an engine whose other processes failed; their own log lines have the cause, the first one."""
_CAUSE = re.compile(r"ERROR [\d :-]+\[[^]]+\] (\w*(?:Error|Exception): .+)")
_RECENT = 8
"""Cells whose mean time estimates that of the next."""

Say = Callable[[str], None]


def sweep(
    matrices: list[Matrix],
    directory: Path,
    say: Say,
    *,
    retry_failed: bool = False,
    warm: bool = False,
    time_limit_s: float | None = None,
    share: tuple[int, int] = (1, 1),
    only: Sequence[str] = (),
    engines: int = 1,
) -> tuple[int, int]:
    """Run all cells that have no result yet.

    Args:
        matrices: Their cells, matrix by matrix, in their orders.
        directory: Where results are kept; made if missing.
        say: Gets a line about each cell.
        retry_failed: Run those again that failed.
        warm: Fork cells from a process that has imported vLLM.
        time_limit_s: Start no cell that would probably not end within this time.
        share: (i, n): only the i-th of every n cells, beside other processes that run the other shares.
        only: Parts of labels; if there are any, only the cells that have one of them, in their order.
        engines: Start so many cells' engines side by side, then have the cells send their requests one after another.

    Returns:
        Cells that failed, and cells that were left out for lack of time.

    Raises:
        KvtraceError: The directory is in use or cannot be written.
        KeyboardInterrupt: The cell that ran is discarded; it runs again next time.
    """
    ends_s = time.monotonic() + time_limit_s if time_limit_s is not None else None
    cells = cells_of(matrices, share, only)
    with locked(directory, share) as lock:
        for matrix in matrices:
            write_study(matrix, directory)
        left = [each for each in cells if not is_done(_place(directory, each[1]), retry_failed=retry_failed)]
        if len(left) < len(cells):
            say(f"{len(cells) - len(left)} of {len(cells)} cells have results already")
        with started((lock,)) if warm and left else nullcontext() as python:
            return _run_all(left, len(cells), directory, say, _Launch(python, lock), ends_s, engines)


def cells_of(matrices: list[Matrix], share: tuple[int, int], only: Sequence[str] = ()) -> list[tuple[Matrix, Cell]]:
    """The cells of a share, in the order to run them in.

    Raises:
        KvtraceError: No label has one of the parts in `only`.
    """
    cells = [(matrix, cell) for matrix in matrices for cell in matrix.cells]
    if only:
        matching = {text: [each for each in cells if text in each[1].label] for text in only}
        if lost := [text for text, found in matching.items() if not found]:
            raise KvtraceError(f"--only {lost[0]!r}: no cell has that in its label; --dry-run lists them", 2)
        cells = list({cell.id: (matrix, cell) for found in matching.values() for matrix, cell in found}.values())
    number, shares = share
    return cells[number - 1 :: shares]


class _Launch(NamedTuple):
    """How the processes of a sweep's cells are started."""

    python: list[str] | None
    """Command that forks them from a process with vLLM; None starts a new interpreter for each."""
    lock: int
    """The descriptor of the sweep's lock, which they keep."""


def _run_all(
    left: list[tuple[Matrix, Cell]],
    total: int,
    directory: Path,
    say: Say,
    launch: _Launch,
    ends_s: float | None,
    engines: int,
) -> tuple[int, int]:
    failed, took_s = 0, _earlier_s(directory)
    recent = max(_RECENT // engines, 1) * engines  # the first of those that start side by side takes their starts
    for number in range(0, len(left), engines):
        beside = left[number : number + engines]
        if ends_s is not None:
            each_s = statistics.fmean(took_s[-recent:]) if took_s else beside[0][0].estimate_s or 0
            if time.monotonic() + each_s * len(beside) > ends_s:
                say(f"out of time: {len(left) - number} cells left; the same command goes on")
                return failed, len(left) - number
        results = run_cells([(cell, _place(directory, cell)) for _, cell in beside], launch)
        for at, ((matrix, cell), result) in enumerate(zip(beside, results, strict=True), number + 1):
            failed += result["status"] != "ok"
            took_s.append(result["seconds"])
            rest_s = statistics.fmean(took_s[-recent:]) * (len(left) - at)
            ending = f", about {_duration(rest_s)} to go" if at < len(left) else ""
            what = "ok" if result["status"] == "ok" else f"failed: {result['error'].splitlines()[-1][:160]}"
            label = f"[{total - len(left) + at}/{total}] {matrix.name}: {cell.label}"
            say(f"{label}: {what}, {result['seconds']:.1f} s{ending}")
    return failed, 0


def run_cells(cells: Sequence[tuple[Cell, Path]], launch: _Launch) -> Iterator[dict[str, Any]]:
    """Run cells from the beginning and write their results.

    Their engines start side by side. Then they send their requests one after another: a cell when the one before has
    ended, its engine, too.

    Args:
        cells: The cells and their folders; earlier ones are removed.
        launch: How their processes are started.

    Yields:
        Their results, as written.
    """
    with ExitStack() as stack:
        since_s = time.monotonic()
        running = [stack.enter_context(_Running(*each, launch, len(cells))) for each in cells]
        while len(cells) > 1:
            have_started = [each.has_started() for each in running]  # all are looked at: each notes when
            if all(have_started):
                break
            time.sleep(_LOOK_S)
        for each in running:
            yield each.finish(since_s)
            since_s = time.monotonic()


class _Running:
    """A cell's processes. None of them is left running when this is left."""

    def __init__(self, cell: Cell, place: Path, launch: _Launch, engines: int) -> None:
        self._cell, self._place, self._warm = cell, place, launch.python is not None
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / CELL).write_text(json.dumps(asdict(cell), indent=1) + "\n")
        if engines > 1:
            hold(place, engines)
        inner = [*(launch.python or [sys.executable]), "-m", "kvtrace.lab.cell", str(place)]
        recorder = [sys.executable, "-m", "kvtrace", "record", "-o", str(place / RUN), "--quiet", "--no-preflight"]
        self._started_ns = time.time_ns()
        self._deadline_s = time.monotonic() + cell.timeout_s
        self._ready_s: float | None = None
        self._is_over = False
        with (place / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [*recorder, "--kv-level", cell.kv_level, "--", *inner],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"VLLM_LOGGING_LEVEL": "WARNING", **os.environ},
                start_new_session=True,
                pass_fds=(launch.lock,),
                preexec_fn=dies_with_us(),  # noqa: PLW1509 - it only makes system calls
            )

    def __enter__(self) -> _Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end()

    def has_started(self) -> bool:
        """Return whether it waits for its turn, or never will: it has ended, or its time is up."""
        if self._ready_s is None and is_ready(self._place):
            self._ready_s = time.monotonic()
        return self._ready_s is not None or self._process.poll() is not None or time.monotonic() > self._deadline_s

    def finish(self, since_s: float) -> dict[str, Any]:
        """Give it its turn, wait for its end, and write its result.

        Args:
            since_s: When the cell before it had ended: what it takes of the sweep's time is counted from then.
        """
        left_s = self._deadline_s - (self._ready_s or time.monotonic())  # waiting for its turn took none of its time
        let_go(self._place)
        error = self._wait(max(left_s, 0))
        facts = read_object(self._place / FACTS)
        error = error or facts.pop("error", None)
        if error is None and self._process.returncode:
            error = f"its process ended with {self._process.returncode}: {_tail(self._place / LOG)}"
        log = (self._place / LOG).read_text(errors="replace")
        if error and _POINTS_UP in error and (cause := _CAUSE.search(log)):
            error = cause[1]
        error = error or gave_up(self._cell.policy, log)
        result = {
            "status": "failed" if error else "ok",
            "error": error,
            "started_ns": self._started_ns,
            "seconds": round(time.monotonic() - since_s, 3),
            "warm": self._warm,
        }
        write_object(self._place / RESULT, result)
        return result

    def _wait(self, seconds: float) -> str | None:
        """Wait for the end; why the cell was ended early, if it was."""
        try:
            self._process.wait(seconds)
            return None
        except subprocess.TimeoutExpired:
            return f"timed out after {self._cell.timeout_s:g} s"
        finally:
            self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_PATIENCE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def locked(directory: Path, share: tuple[int, int]) -> Iterator[int]:
    """Keep other sweeps away, and wait for what a killed one left running: its processes hold the lock, too.

    Shares of one sweep keep each other's twin and sweeps of the whole away, not each other.
    """
    number, shares = share
    with ExitStack() as files:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = files.enter_context(_opened(directory / ".lock"))
            own = files.enter_context(_opened(directory / f".lock-{number}-of-{shares}")) if shares > 1 else lock
        except OSError as error:
            raise KvtraceError(f"{directory} cannot be written: {error.strerror}") from error
        deadline_s = time.monotonic() + _LOCK_PATIENCE_S
        if shares > 1:
            _lock(lock, fcntl.LOCK_SH, deadline_s, directory)
        _lock(own, fcntl.LOCK_EX, deadline_s, directory)
        yield own


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def _lock(file: int, how: int, deadline_s: float, directory: Path) -> None:
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise KvtraceError(f"{directory} is in use by another `kvtrace lab run`") from None
            time.sleep(0.2)


def write_study(matrix: Matrix, directory: Path) -> None:
    """Write what a report needs of a matrix."""
    path = directory / "studies" / f"{matrix.name}.json"
    path.parent.mkdir(exist_ok=True)
    axes = {axis: list(dict.fromkeys(text_of(cell.axes[axis]) for cell in _by_place(matrix))) for axis in matrix.axes}
    cells = [cell.id for cell in matrix.cells]
    write_object(path, {"name": matrix.name, "axes": axes, "compare": matrix.compare, "cells": cells})


def _by_place(matrix: Matrix) -> list[Cell]:
    """Cells in the order of the matrix's values, not that of running."""
    values = {axis: [text_of(value) for value in given] for axis, given in matrix.axes.items()}
    values["policy"] = [policy_label(policy_of(value)) for value in matrix.axes.get("policy", [])]
    return sorted(matrix.cells, key=lambda cell: [values[axis].index(text_of(cell.axes[axis])) for axis in matrix.axes])


def _place(directory: Path, cell: Cell) -> Path:
    return directory / "cells" / cell.id


def is_done(place: Path, *, retry_failed: bool) -> bool:
    """Return whether a cell has a result that is to stay."""
    status = read_object(place / RESULT).get("status")
    return status == "ok" or (status == "failed" and not retry_failed)


def _earlier_s(directory: Path) -> list[float]:
    results = [read_object(path) for path in directory.glob(f"cells/*/{RESULT}")]
    done = sorted((result for result in results if result), key=lambda result: result["started_ns"])
    return [float(result["seconds"]) for result in done]


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if it is missing or torn."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_object(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")  # shares of a sweep write the same study
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    temporary.replace(path)


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_TAIL_CHARACTERS:].strip()


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
