"""Reading the JSON-lines files of a recording, whose last line may be torn."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kvtrace.errors import Tell, refuse

_LINES_AT_ONCE = 4096


def read_json_lines(path: Path, warnings: list[str], tell: Tell | None = None) -> Iterator[Any]:
    """Yield the value of each line. A last line that is torn is left out and reported in `warnings`.

    Raises:
        DamageError: Another line is not JSON, and there is no `tell`, with which such lines are left out.
    """
    with path.open("rb") as file:
        first = 1
        while lines := list(itertools.islice(file, _LINES_AT_ONCE)):
            values = _parse_together(lines)
            if values is None:
                values = _parse_singly(path, lines, first, file, warnings, tell)
            yield from values
            first += len(lines)


def _parse_together(lines: list[bytes]) -> list[Any] | None:
    """Parse many lines with one call, which is several times faster; None if any of them is damaged."""
    try:
        values: list[Any] = parse_json(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    return values if len(values) == len(lines) else None


def _parse_singly(
    path: Path, lines: list[bytes], first: int, file: IO[bytes], warnings: list[str], tell: Tell | None
) -> list[Any]:
    values = []
    for index, line in enumerate(lines):
        try:
            values.append(parse_json(line))
        except (ValueError, RecursionError):
            if index + 1 < len(lines) or file.read(1):
                refuse(f"{path} is damaged: line {first + index} is not JSON: {line[:40]!r}", tell)
                continue
            warnings.append(f"{path}: the last line (line {first + index}) is torn; it was left out")
    return values


def parse_json(data: bytes) -> Any:
    """Parse UTF-8 JSON. Halves of surrogate pairs, which no database takes, become question marks."""
    value = json.loads(data.decode())
    if b"\\ud" in data or b"\\uD" in data:
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value
