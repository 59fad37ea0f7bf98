"""Results of sweeps in one file, without their recordings: all that reports and the explorer read of a cell.

`kvtrace lab report` writes it beside its tables, and takes it in the place of a folder. It is compressed JSON Lines:
{"kept": 1}, the format; then {"study": ...}, a matrix as DIR/studies has it, and {"result": ...}, a cell.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.matrix import Cell
from kvtrace.lab.results import MADE, Phase, Result

RESULTS = "results.jsonl.gz"
_FORMAT = 1
_FACTS = "device", "software", "predicted"
_PREDICTED = "time_from", "notes"


def write_kept(path: Path, studies: Sequence[dict[str, Any]], results: Sequence[Result]) -> None:
    """Write the file.

    Raises:
        OSError: It cannot be written.
    """
    lines: list[dict[str, Any]] = [{"kept": _FORMAT}]
    lines += [{"study": study} for study in studies]
    lines += [{"result": _told(result)} for result in results]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_kept(path: Path) -> tuple[list[dict[str, Any]], list[Result]]:
    """The matrices and the cells of a file.

    Raises:
        KvtraceError: It cannot be read, or is none of these files.
    """
    try:
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        if not lines or lines[0] != {"kept": _FORMAT}:
            raise ValueError(f'its first line is not {{"kept": {_FORMAT}}}')
        studies = [line["study"] for line in lines[1:] if "study" in line]
        return studies, [_result(path, line["result"]) for line in lines[1:] if "study" not in line]
    except OSError as error:
        why = error.strerror or "it is not compressed by gzip, as results.jsonl.gz is"
        raise KvtraceError(f"{path} cannot be read: {why}") from error
    except (EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise KvtraceError(f"{path} does not hold results of `kvtrace lab`: {error}") from error


def _told(result: Result) -> dict[str, Any]:
    cell = asdict(result.cell)
    cell["axes"].pop(MADE, None)
    facts = {name: result.facts[name] for name in _FACTS if name in result.facts}
    if "predicted" in facts:
        facts["predicted"] = {name: facts["predicted"].get(name) for name in _PREDICTED}

    def nameless(text: str) -> str:
        return text.replace(str(result.place), result.place.name)

    return {
        "name": result.place.name,
        "status": result.status,
        "error": nameless(result.error) if result.error else None,
        "seconds": result.seconds,
        "facts": facts,
        "engine": {name: result.engine[name] for name in ("blocks",) if name in result.engine},
        "steps": result.steps,
        "warnings": [nameless(warning) for warning in result.warnings],
        "phases": [_unplaced(asdict(phase)) for phase in result.phases],
        "cell": _unplaced(cell),
    }


def _unplaced(value: Any) -> Any:
    """A value in which files have their names alone: a workload's trace and a shape may be anywhere."""
    if isinstance(value, dict):
        return {key: _unplaced(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_unplaced(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _result(path: Path, told: dict[str, Any]) -> Result:
    known = {field.name for field in fields(Cell)}
    cell = Cell(**{name: value for name, value in told["cell"].items() if name in known})
    steps = told.get("steps")
    return Result(
        cell,
        path / str(told["name"]),
        str(told["status"]),
        told.get("error"),
        float(told["seconds"]),
        dict(told["facts"]),
        [Phase(**phase) for phase in told["phases"]],
        dict(told.get("engine", {})),
        tuple(steps) if steps else None,
        list(told.get("warnings", [])),
    )
