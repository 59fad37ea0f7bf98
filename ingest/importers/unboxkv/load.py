"""UnBoxKV-IO's files: finds them in folders, tells by their content what they are, and puts those of a run together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from itertools import islice
from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.engines import add_source
from kvtrace.ingest.importers.importer import Progress
from kvtrace.ingest.importers.lines import plain_name, read_lines
from kvtrace.ingest.importers.options import Options
from kvtrace.ingest.importers.unboxkv.log import LOG_LINE, load_log
from kvtrace.ingest.importers.unboxkv.pattern import load_patterns
from kvtrace.ingest.importers.unboxkv.usage import is_steps, is_usage, load_usage

EXPECTED = "expected a file of UnBoxKV-IO: a KV pattern (.json), utilisation or steps (.csv), or a log"
HEAD_LINES = 200
_ENDINGS = (".json", ".jsonl", ".csv", ".log")
_LOG_ENDINGS = (".log", ".txt", ".out")
_PARTS = re.compile(r"(?:^|[_-])(?:read|write|steps?)(?=[_-]|$)", re.IGNORECASE)


class Kind(Enum):
    """Kind of a file."""

    pattern = "KV pattern"
    usage = "utilisation"
    steps = "steps"
    log = "log"


def find_files(given: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """The files meant by files and folders, and warnings about those in folders that are something else.

    Raises:
        KvtraceError: A path does not exist, a file is none of UnBoxKV-IO's, or a folder has none of them.
    """
    files: list[Path] = []
    warnings = []
    for path in given:
        if not path.is_dir():
            kind_of(path)
            files.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.is_file() and not _is_left_out(file))
        known = [file for file in inside if _is_known(file)]
        if not known:
            for file in inside:
                if plain_name(file).endswith(_ENDINGS):
                    kind_of(file)  # says what is wrong with it
            raise KvtraceError(f"{path} has no file of UnBoxKV-IO among its {len(inside)} files; {EXPECTED}")
        if others := [file.name for file in inside if file not in known]:
            warnings.append(f"{path.name}: {len(others)} files are none of UnBoxKV-IO's: {', '.join(others[:5])}")
        files += known
    return files, warnings


def kind_of(path: Path) -> Kind:
    """Return a file's kind, by its first lines.

    Raises:
        KvtraceError: It cannot be read, is empty, or is none of UnBoxKV-IO's.
    """
    lines = read_lines(path, EXPECTED)
    first = next(lines, None)
    if first is None:
        raise KvtraceError(f"{path} is empty; {EXPECTED}")
    if first.text.startswith("{") and "pattern_record" in first.text:
        return Kind.pattern
    if is_steps(first.text):
        return Kind.steps
    if is_usage(first.text):
        return Kind.usage
    if any(LOG_LINE.match(line.text) for line in (first, *islice(lines, HEAD_LINES))):
        return Kind.log
    raise KvtraceError(f"{path}, line {first.number}: {first.text[:60]!r}; {EXPECTED}")


def _is_left_out(path: Path) -> bool:
    return path.name.startswith(".") or ".duckdb" in path.name


def _is_known(path: Path) -> bool:
    """Say whether a file of a folder is data: of a script that reads logs, some lines may look like a log's."""
    try:
        kind = kind_of(path)
    except KvtraceError:
        return False
    return kind is not Kind.log or plain_name(path).endswith(_LOG_ENDINGS) or "." not in path.name


def load_unboxkv(
    connection: duckdb.DuckDBPyConnection,
    files: list[tuple[int, Path]],
    options: Options,
    progress: Progress,
) -> list[str]:
    """Read files, each with its `source_id`; returns warnings.

    Patterns of one run, read and write, become one engine, as do a run's utilisation and its steps; a log is one.

    Raises:
        KvtraceError: A file is not what it seems, or damaged.
    """
    warnings: list[str] = []
    runs: dict[tuple[str, str, Path], list[tuple[int, Path, Kind]]] = {}
    for source_id, path in files:
        kind = kind_of(path)
        add_source(connection, source_id, "unboxkv", path.name)
        family = "usage" if kind in (Kind.usage, Kind.steps) else kind.name
        runs.setdefault((family, run_name(path, kind), path.parent), []).append((source_id, path, kind))
    for (family, name, _), members in runs.items():
        paths = [(source_id, path) for source_id, path, _ in members]
        if family == "pattern":
            warnings += load_patterns(connection, name, paths, options, progress)
        elif family == "usage":
            usage = [member for member in members if member[2] is Kind.usage]
            steps = [member for member in members if member[2] is Kind.steps]
            for nth in range(max(len(usage), len(steps))):  # one of each, unless names repeat
                one, other = (each[nth][:2] if nth < len(each) else None for each in (usage, steps))
                warnings += load_usage(connection, name, one, other, progress)
        else:
            for source_id, path in paths:
                warnings += load_log(connection, name, source_id, path, progress)
    return warnings


def run_name(path: Path, kind: Kind) -> str:
    """The name of the run that a file is of: what its files' names have in common."""
    stem = plain_name(path)
    for ending in _ENDINGS:
        stem = stem.removesuffix(ending)
    if kind is Kind.log:
        return stem.removeprefix("log-")
    return _PARTS.sub("", stem).strip("_-") or stem
