"""Results of sweeps in one file, without their recordings: all that reports and the explorer read of a cell.

`kvtrace lab report` writes it beside its tables, and takes it in the place of a folder. It is compressed JSON Lines:
{"kept": 1}, the format; then {"study": ...}, a matrix as DIR/studies has it, and {"result": ...}, a cell.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.lines import read_lines
from kvtrace.lab.matrix import Cell
from kvtrace.lab.policies import policy_label
from kvtrace.lab.results import MADE, Phase, Result
from kvtrace.queries.text import inert

RESULTS = "results.jsonl.gz"
_FORMAT = 1
_EXPECTED = "expected what `kvtrace lab report` keeps"
_LONGEST_REASON = 200
_LARGEST = 1 << 63

_Name = Annotated[str, msgspec.Meta(pattern=r"^[^/\\.\x00-\x1f][^/\\\x00-\x1f]*$", max_length=200)]
"""A name for files."""


class _Study(msgspec.Struct):
    name: _Name
    axes: dict[str, list[str]]
    compare: str | None
    cells: list[str]


class _Predicted(msgspec.Struct):
    time_from: str | None = None
    notes: list[str] = []


class _Facts(msgspec.Struct, omit_defaults=True):
    device: str | None = None
    software: dict[str, str] = {}
    predicted: _Predicted | None = None


class _Result(msgspec.Struct):
    name: _Name
    status: str
    error: str | None
    seconds: float
    facts: _Facts
    engine: dict[str, int]
    steps: tuple[float, float, float, float, float, float] | None
    warnings: list[str]
    phases: list[Phase]
    cell: Cell


class _Line(msgspec.Struct, omit_defaults=True):
    kept: int | None = None
    study: _Study | None = None
    result: _Result | None = None


class _Workload(msgspec.Struct):
    """The parts of a workload's description that are read."""

    name: str
    sha256: str
    jobs: int
    requests: int
    parameters: dict[str, Any]


def write_kept(path: Path, studies: Sequence[dict[str, Any]], results: Sequence[Result]) -> None:
    """Write the file.

    Raises:
        OSError: It cannot be written.
    """
    lines = [_Line(kept=_FORMAT)]
    lines += [_Line(study=msgspec.convert(study, _Study)) for study in studies]
    lines += [_Line(result=_of(result)) for result in results]
    path.write_bytes(gzip.compress(msgspec.json.Encoder().encode_lines(lines), mtime=0))


def read_kept(path: Path) -> tuple[list[dict[str, Any]], list[Result]]:
    """The matrices and the cells of a file.

    Raises:
        KvtraceError: It cannot be read, or is none of these files.
    """
    decoder = msgspec.json.Decoder(_Line)
    begun = False
    studies: list[dict[str, Any]] = []
    results: list[Result] = []
    for line in read_lines(path, _EXPECTED):
        try:
            told = decoder.decode(line.text)
            if not begun and told.kept != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT}")
            begun = True
            if told.study is not None:
                studies.append(_checked(told.study))
            if told.result is not None:
                results.append(_result(path, told.result))
        except (ValueError, RecursionError) as error:  # msgspec's are among them
            raise KvtraceError(f"{path}, {line.place()}: {inert(str(error))[:_LONGEST_REASON]}; {_EXPECTED}") from error
    if not begun:
        raise KvtraceError(f"{path} is empty; {_EXPECTED}")
    return studies, results


def _of(result: Result) -> _Result:
    cell = replace(result.cell, axes={axis: value for axis, value in result.cell.axes.items() if axis != MADE})
    told = {
        "name": result.place.name,
        "status": result.status,
        "error": result.error,
        "seconds": result.seconds,
        "facts": result.facts,
        "engine": {name: result.engine[name] for name in ("blocks",) if name in result.engine},
        "steps": result.steps,
        "warnings": result.warnings,
        "phases": result.phases,
        "cell": cell,
    }
    place = str(result.place)
    return msgspec.convert(_unplaced(msgspec.to_builtins(told), place), _Result)


def _unplaced(value: Any, place: str) -> Any:
    """A value in which files have their names alone: a workload's trace and a shape may be anywhere."""
    if isinstance(value, dict):
        return {key: _unplaced(each, place) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_unplaced(each, place) for each in value]
    if not isinstance(value, str):
        return value
    return Path(value).name if Path(value).is_absolute() else value.replace(place, Path(place).name)


def _checked(study: _Study) -> dict[str, Any]:
    if study.compare is not None and study.compare not in study.axes:
        raise ValueError(f"{study.name} compares along {study.compare}, which is none of its axes")
    told: dict[str, Any] = msgspec.to_builtins(study)
    return told


def _result(path: Path, told: _Result) -> Result:
    try:
        policy_label(told.cell.policy)
    except (ArithmeticError, LookupError, TypeError) as error:
        raise ValueError("a policy without a name or with no size") from error
    if told.cell.block_size < 1:
        raise ValueError("blocks without a size")
    numbers = [vars(told.cell), told.steps]
    numbers += [{name: value for name, value in vars(phase).items() if name != "workload"} for phase in told.phases]
    if _has_too_large(numbers):
        raise ValueError("a number of more than 64 bits")
    for phase in told.phases:
        msgspec.convert(phase.workload, _Workload)
    return Result(
        told.cell,
        path / told.name,
        told.status,
        told.error,
        told.seconds,
        msgspec.to_builtins(told.facts),
        told.phases,
        dict(told.engine),
        told.steps,
        told.warnings,
    )


def _has_too_large(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_too_large, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_too_large, value))
    return isinstance(value, int | float) and abs(value) >= _LARGEST
