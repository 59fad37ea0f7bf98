"""Predicts the cells of matrices in place of running them; `cell` is the process that does it."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.ingest.run import ingest
from kvtrace.lab.cell import CELL, DRAWS, FACTS, PREDICTED, load_cell
from kvtrace.lab.lifetime import dies_with_us
from kvtrace.lab.matrix import Cell, Matrix
from kvtrace.lab.replay import run, timing
from kvtrace.lab.replay.cell import Plan, Source
from kvtrace.lab.replay.recording import Recording, read_recording
from kvtrace.lab.replay.resample import asked_draws
from kvtrace.lab.replay.settings import with_copies_of
from kvtrace.lab.sweep import RESULT, RUN, cells_of, is_done, locked, read_object, write_study
from kvtrace.queries.trace import TRACE_NAME

_END_PATIENCE_S = 5.0


def predict(
    matrices: list[Matrix],
    directory: Path,
    say: Callable[[str], None],
    *,
    time_from: Path | None = None,
    retry_failed: bool = False,
    share: tuple[int, int] = (1, 1),
    only: Sequence[str] = (),
    at_once: int = 2,
    draws: int = 0,
) -> int:
    """Predict all cells that have no prediction yet; returns how many failed.

    Args:
        matrices: Their cells.
        directory: Where results are kept, measured ones too; made if missing.
        say: Gets a line about each cell.
        time_from: The trace that step times, bandwidths of copies and the engine's other settings come from. Without
            it: for each cell a measured cell of the directory that has its shape, of its policy's kind or, without
            one, of FCFS, and of those the one with the nearest capacity.
        retry_failed: Predict those again that failed.
        share: (i, n): only the i-th of every n cells.
        only: Parts of labels: only the cells that have one of them.
        at_once: Cells side by side.
        draws: Replay each cell with so many draws of step times, too; 0 or 1 for none. Cells that were predicted with
            fewer are predicted again.

    Raises:
        KvtraceError: There is nothing to take times from, too few draws, or the directory cannot be written.
        KeyboardInterrupt: Cells that were not finished are predicted next time.
    """
    draws = asked_draws(draws)
    cells = cells_of(matrices, share, only)
    with locked(directory, share):
        for matrix in matrices:
            write_study(matrix, directory)
        places = {directory / "cells" / f"{cell.id}{PREDICTED}": cell for _, cell in cells}
        left = {place: cell for place, cell in places.items() if not _is_done(place, draws, retry_failed=retry_failed)}
        if len(left) < len(places):
            say(f"{len(places) - len(left)} of {len(places)} cells are predicted already")
        if not left:
            return 0
        plan = replace(_plan(left, directory, time_from, at_once), draws=draws)
        for source in plan.sources:
            say(
                f"step times of {sum(plan.sources[number] is source for _, number in plan.places)} cells: {source.name}"
            )
        for place, cell in left.items():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            (place / CELL).write_text(json.dumps(asdict(cell), indent=1) + "\n")
        return _run(plan, left, say)


def _is_done(place: Path, draws: int, *, retry_failed: bool) -> bool:
    """Return whether a cell has a result that is to stay: with so many draws, unless it failed."""
    if not is_done(place, retry_failed=retry_failed):
        return False
    failed = read_object(place / RESULT).get("status") != "ok"
    return failed or len(read_object(place / FACTS).get("predicted", {}).get(DRAWS, [])) >= draws


def _plan(left: dict[Path, Cell], directory: Path, time_from: Path | None, at_once: int) -> Plan:
    measured = _measured(directory)
    wanted: list[tuple[Path, Path | None]] = []
    places = []
    for place, cell in left.items():
        source = time_from or _times(cell, measured), _copies(cell, measured)
        if source not in wanted:
            wanted.append(source)
        places.append((place, wanted.index(source)))
    return Plan(places, [_source(times, copies, directory) for times, copies in wanted], at_once)


def _measured(directory: Path) -> list[tuple[Cell, Path]]:
    """Measured cells that ended well and their traces: of FCFS, and of connectors, which have work of their own."""
    found = []
    for path in sorted(directory.glob(f"cells/*/{RESULT}")):
        result = read_object(path)
        if result.get("status") == "ok" and not result.get("predicted"):
            cell = load_cell(path.parent)
            if cell.policy["name"] == "fcfs" or "host_gib" in cell.policy:
                found.append((cell, path.parent / RUN / TRACE_NAME))
    return found


def _times(cell: Cell, measured: list[tuple[Cell, Path]]) -> Path:
    """The trace whose steps a cell's are to take as long as: of its own kind, else of FCFS.

    Copies of LMCache are part of steps, so FCFS comes first there.
    """
    kinds = [cell.policy, {"name": "fcfs"}]
    if cell.policy["name"] == "lmcache":
        kinds.reverse()
    for kind in kinds:
        if found := _nearest(cell, measured, kind):
            return found
    raise KvtraceError(
        f"nothing tells how long steps of {cell.model} take: name a trace with --time-from, or run a FCFS cell of "
        "that shape first",
        2,
    )


def _copies(cell: Cell, measured: list[tuple[Cell, Path]]) -> Path | None:
    """The trace that tells what copies of a cell's connector take."""
    return _nearest(cell, measured, cell.policy) if "host_gib" in cell.policy else None


def _nearest(cell: Cell, measured: list[tuple[Cell, Path]], policy: Mapping[str, object]) -> Path | None:
    """The trace of the measured cell of the same shape and such a policy with the nearest capacity, then rate."""
    alike = [
        each
        for each in measured
        if (each[0].model, each[0].enforce_eager) == (cell.model, cell.enforce_eager)
        and each[0].policy["name"] == policy["name"]
    ]

    def far(each: tuple[Cell, Path]) -> tuple[float, float]:
        rates = [float(one.workload.get("rate") or 1.0) for one in (cell, each[0])]
        return abs(math.log(each[0].kv_tokens / cell.kv_tokens)), abs(math.log(rates[0] / rates[1]))

    return min(alike, key=far)[1] if alike else None


def _source(times: Path, copies: Path | None, directory: Path) -> Source:
    """Step times of one trace, and what copies took in another, if it has any."""
    recording = _recording(times)
    name = _name(times, directory)
    engine = recording.engine
    if copies and copies != times:
        engine = with_copies_of(engine, _recording(copies).engine)
        if engine is not recording.engine:
            name += f", copies of {_name(copies, directory)}"
    return Source(name, replace(recording, steps=[], resets_ns=[], engine=engine), timing.fit(recording.steps))


def _recording(path: Path) -> Recording:
    if not path.exists() and path.name == TRACE_NAME:
        ingest(path.parent)
    return read_recording(path)


def _name(path: Path, directory: Path) -> str:
    return path.parent.parent.name if path.is_relative_to(directory) else str(path.name)


def _run(plan: Plan, left: dict[Path, Cell], say: Callable[[str], None]) -> int:
    failed, done, began_s = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvtrace-predict-") as folder:
        path = Path(folder, "plan.pickle")
        path.write_bytes(pickle.dumps(plan))
        environment = {key: value for key, value in os.environ.items() if key != "KVTRACE_RUN_DIR"}
        said = Path(folder, "stderr")
        process = subprocess.Popen(
            [*run.PYTHON, "-m", "kvtrace.lab.replay.cell", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said.open("wb"),
            text=True,
            env=environment,
            start_new_session=True,
            preexec_fn=dies_with_us(),  # noqa: PLW1509 - it only makes system calls
        )
        try:
            assert process.stdout is not None
            by_name = {place.name: (place, cell) for place, cell in left.items()}
            for line in process.stdout:
                if line.strip() not in by_name:
                    continue
                place, cell = by_name[line.strip()]
                result = read_object(place / RESULT)
                done += 1
                failed += result.get("status") != "ok"
                error = result.get("error") or "its process ended; see log.txt"
                what = "predicted" if result.get("status") == "ok" else f"failed: {error.splitlines()[-1][:160]}"
                say(f"[{done}/{len(left)}] {cell.study}: {cell.label}: {what}, {result.get('seconds', 0):.1f} s")
        finally:
            _end(process)
        last = (said.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
    if done < len(left):
        hint = "; is vLLM installed in this environment?" if "vllm" in last else ""
        raise KvtraceError(f"{len(left) - done} cells were not predicted: the process ended: {last[:300]}{hint}")
    say(f"{done} cells predicted in {time.monotonic() - began_s:.0f} s")
    return failed


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of it running."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_PATIENCE_S if process.poll() is None and sys.exc_info()[0] is None else 0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
