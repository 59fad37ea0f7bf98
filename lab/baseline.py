"""Gates of a sweep: each cell against the same cell of earlier sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.ingest.run import ingest
from kvtrace.lab.matrix import Cell
from kvtrace.lab.sweep import RESULT, RUN, read_object
from kvtrace.queries.trace import TRACE_NAME
from kvtrace.reports.compare import compare
from kvtrace.reports.gates import FAILED, NO_VERDICT, Gate, Judgement, exit_code, judge


@dataclass(frozen=True)
class Judged:
    """A cell, and its gates' outcomes; `problem` says why there are none."""

    cell: Cell
    judgements: list[Judgement]
    problem: str = ""

    @property
    def code(self) -> int:
        """The exit code that it asks for."""
        return NO_VERDICT if self.problem else exit_code(self.judgements)


def check_baselines(baselines: Sequence[Path]) -> None:
    """See that there are sweeps, before any cell runs.

    Raises:
        KvtraceError: a folder is no sweep's.
    """
    for path in baselines:
        if not (path / "cells").is_dir():
            raise KvtraceError(f"--baseline {path}: it has no cells; name a folder that `kvtrace lab run -o` made", 2)


def judge_cells(
    cells: Iterable[Cell], directory: Path, baselines: Sequence[Path], gates: Sequence[Gate]
) -> Iterator[Judged]:
    """Judge the gates for each cell of a sweep, by its difference from the first baseline's.

    Args:
        cells: Cells of the sweep.
        directory: The sweep's folder.
        baselines: Folders of earlier sweeps of the same matrices. What the later ones have of a cell are its
            repetitions, whose differences from the first are noise.
        gates: Conditions that fail a cell.
    """
    for cell in cells:
        try:
            new = _trace(directory, cell)
            old = [trace for path in baselines if (trace := _trace(path, cell)) is not None]
            if new is None or not old:
                yield Judged(cell, [], f"no trace of it in {directory if new is None else 'a baseline'}")
            else:
                yield Judged(cell, judge(gates, compare([old[0], new], None, old[1:])))
        except KvtraceError as error:
            yield Judged(cell, [], str(error))


def worst_code(judged: Iterable[Judged]) -> int:
    """`FAILED` if a gate failed, else `NO_VERDICT` if one has no verdict, else 0."""
    codes = {each.code for each in judged}
    return FAILED if FAILED in codes else max(codes, default=0)


def _trace(directory: Path, cell: Cell) -> Path | None:
    """A cell's trace, made now if it has none; None of a cell that failed or did not run."""
    place = directory / "cells" / cell.id
    if read_object(place / RESULT).get("status") != "ok":
        return None
    trace = place / RUN / TRACE_NAME
    return trace if trace.exists() else ingest(place / RUN).target
