"""CSVs of a run's utilisation and throughput over time, and of its steps' durations, whatever their columns' order."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.ingest.append import Appender, nanoseconds, real, whole
from kvtrace.ingest.importers.engines import count_source, new_engine
from kvtrace.ingest.importers.importer import Progress
from kvtrace.ingest.importers.lines import LeftOut, Line, read_lines
from kvtrace.ingest.importers.options import say
from kvtrace.ingest.importers.unboxkv.samples import insert_steps, make_step_table

EXPECTED = "expected a CSV of UnBoxKV-IO with a header"
_UNITS_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
_UNIT = re.compile(r"\((ns|us|ms|s)\)")
_MODE = re.compile(r"(?:^|[-_])(recmp|recompute|swap)(?=[-_.]|$)")
_USAGE = {
    "time": r"time elapsed|elapsed time",
    "total": r"avg throughput|^throughput",
    "prompt": r"prompt throughput",
    "output": r"generation throughput",
    "running": r"^running",
    "swapped": r"^swapped",
    "waiting": r"^pending|^waiting",
    "gpu": r"gpu kv cache usage",
    "host": r"cpu kv cache usage",
}
_STEPS = {
    "step": r"^step",
    "duration": r"^dur",
    "running": r"^running_reqs",
    "resumed": r"^resumed_reqs",
    "raw": r"^raw_running",
}
Row = tuple[Line, dict[str, str]]


def is_usage(header: str) -> bool:
    """Return whether a line is the header of utilisation over time."""
    return {"time", "gpu"} <= _columns(header, _USAGE).keys()


def is_steps(header: str) -> bool:
    """Return whether a line is the header of steps."""
    return {"step", "duration"} <= _columns(header, _STEPS).keys()


def load_usage(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    usage: tuple[int, Path] | None,
    steps: tuple[int, Path] | None,
    progress: Progress,
) -> list[str]:
    """Read a run's utilisation and its steps, either of which may be missing; returns warnings.

    Raises:
        KvtraceError: A file cannot be read, or a row is not what its header says.
    """
    first = usage or steps
    if first is None:
        return []
    warnings: list[str] = []
    engine = new_engine(connection, name, first[0])
    if mode := _MODE.search(name):
        engine.preemption_mode = "swap" if mode[1] == "swap" else "recompute"
        say(connection, f"unboxkv {name}: preemption_mode", engine.preemption_mode, "by the file's name")
    engine.insert(connection)
    if usage:
        _load_samples(connection, engine.engine_id, *usage, warnings, progress)
    make_step_table(connection)
    if steps:
        _load_steps(connection, *steps, warnings, progress)
    if warning := insert_steps(connection, engine.engine_id):
        warnings.append(f"{name}: {warning}")
    return warnings


def _load_samples(
    connection: duckdb.DuckDBPyConnection,
    engine_id: int,
    source_id: int,
    path: Path,
    warnings: list[str],
    progress: Progress,
) -> None:
    rows = Appender(
        connection,
        "engine_sample",
        "engine_id source_id sample time_ns interval_ns running swapped waiting gpu_usage host_usage tokens_per_s "
        "prompt_tokens_per_s output_tokens_per_s",
    )
    unit_ns, before, sample = 1e6, 0, 0
    left_out = LeftOut(path, "no rows")
    for line, row in _rows(path, _USAGE, left_out, warnings):
        unit_ns = _unit_ns(row["header time"])
        time_ns = nanoseconds(row["time"], unit_ns)
        numbers = {key: real(row[key]) for key in _USAGE if row.get(key)}
        if time_ns is None or time_ns < before or None in numbers.values():
            left_out.add(line, f"{_shown(row)}: no number, or time goes back")
            continue
        if not any(numbers.values()):  # the authors' first row: nothing yet at 0
            continue
        sample += 1
        prompt, output = numbers.get("prompt"), numbers.get("output")
        total = numbers.get("total", None if prompt is None or output is None else prompt + output)
        counts = (whole(row.get(key)) for key in ("running", "swapped", "waiting"))
        shares = (None if numbers.get(key) is None else (numbers[key] or 0) / 100 for key in ("gpu", "host"))
        rows.add(engine_id, source_id, sample, time_ns, time_ns - before, *counts, *shares, total, prompt, output)
        before = time_ns
        if not line.number % 10_000:
            progress("utilisation", line.number, line.number)
    rows.flush()
    _check_rows(path, sample, left_out, warnings)
    count_source(connection, source_id, "utilisation", sample, sample, "engine_sample")


def _load_steps(
    connection: duckdb.DuckDBPyConnection, source_id: int, path: Path, warnings: list[str], progress: Progress
) -> None:
    rows = Appender(connection, "imported_step", "step duration_ns running resumed_requests")
    left_out = LeftOut(path, "no rows")
    for line, row in _rows(path, _STEPS, left_out, warnings):
        step, duration_ns = whole(row["step"]), nanoseconds(row["duration"], _unit_ns(row["header duration"]))
        counts = [whole(row[key]) if row.get(key) else None for key in ("running", "resumed")]
        wrong = [
            key for key, count in zip(("running", "resumed"), counts, strict=True) if row.get(key) and count is None
        ]
        if step is None or duration_ns is None or duration_ns < 0 or wrong:
            left_out.add(line, f"{_shown(row)}: a value is no number")
            continue
        rows.add(step, duration_ns, *counts)
        if not line.number % 10_000:
            progress("steps", line.number, line.number)
    rows.flush()
    _check_rows(path, rows.count, left_out, warnings)
    repeated = connection.execute("SELECT step FROM imported_step GROUP BY step HAVING count(*) > 1 LIMIT 1").fetchall()
    if repeated:
        raise KvtraceError(f"{path}: step {repeated[0][0]} is there twice; are two runs in one file?")
    count_source(connection, source_id, "steps", rows.count, rows.count, "step_schedule")


def _check_rows(path: Path, count: int, left_out: LeftOut, warnings: list[str]) -> None:
    """Warn of rows that were left out, unless that is all of them."""
    if not count and left_out.count:
        raise left_out.refusal(EXPECTED)
    if not count:
        raise KvtraceError(f"{path} has a header and no row; was the run interrupted?")
    warnings += left_out.warnings()


def _rows(path: Path, known: dict[str, str], left_out: LeftOut, warnings: list[str]) -> Iterator[Row]:
    """A file's rows by the names of `known`, with the header of each name as "header NAME"."""
    lines = read_lines(path, EXPECTED, warnings)
    header = next(lines)
    delimiter = _delimiter(header.text)
    names = next(csv.reader([header.text], delimiter=delimiter))
    columns = _columns(header.text, known)
    if others := [name for at, name in enumerate(names) if at not in columns.values()]:
        warnings.append(f"{path.name}: nothing is known of column {', '.join(others)[:80]}; left out")
    heads = {f"header {key}": names[at] for key, at in columns.items()}
    for line in lines:
        try:
            values = next(csv.reader([line.text], delimiter=delimiter), [])
        except csv.Error as error:
            left_out.add(line, error)
            continue
        if len(values) != len(names):
            if not line.whole:
                warnings.append(f"{path.name}: the last line, {line.number}, is cut off and was left out")
                return
            left_out.add(line, f"{len(values)} values, where the header has {len(names)}")
            continue
        yield line, {**heads, **{key: values[at].strip() for key, at in columns.items()}}


def _columns(header: str, known: dict[str, str]) -> dict[str, int]:
    """Return the place of each known column."""
    try:
        names = [name.strip().lower() for name in next(csv.reader([header], delimiter=_delimiter(header)), [])]
    except csv.Error:
        return {}
    found: dict[str, int] = {}
    for key, pattern in known.items():
        at = next((at for at, name in enumerate(names) if re.search(pattern, name)), None)
        if at is not None:
            found[key] = at
    return found


def _delimiter(header: str) -> str:
    return max(",;|\t", key=header.count)


def _unit_ns(header: str) -> float:
    unit = _UNIT.search(header)
    return _UNITS_NS[unit[1]] if unit else 1e6


def _shown(row: dict[str, str]) -> str:
    return ", ".join(value for key, value in row.items() if not key.startswith("header "))[:60]
