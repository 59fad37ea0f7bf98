"""`kept.json`: the records of a process that a flight recorder discarded, and from where on streams are whole.

Only the launcher writes it, before it deletes the files. A segment with a lower number than `first - 1` does not count;
number `first - 1`, if it exists, has the records still in force of the discarded ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvtrace.errors import DamageError
from kvtrace.format import layout
from kvtrace.format.segment import check_format_version

TILES = "tiles"
"""Stream name of tile files. Their records are steps."""


@dataclass(frozen=True)
class Discarded:
    """Discarded part of a stream. The rest begins with file `first`, at `begins_ns` (CLOCK_MONOTONIC)."""

    first: int = 0
    files: int = 0
    records: int = 0
    bytes: int = 0
    begins_ns: int = 0

    def more(self, first: int, records: int, size: int, begins_ns: int) -> Discarded:
        """Return this with the files before `first` discarded as well."""
        files = self.files + first - self.first
        return replace(
            self, first=first, files=files, records=self.records + records, bytes=self.bytes + size, begins_ns=begins_ns
        )


@dataclass(frozen=True)
class Discards:
    """Discarded records, by stream, and the first file of strings that is needed."""

    streams: dict[str, Discarded] = field(default_factory=dict)
    first_strings: int = 0

    def write(self, directory: Path) -> None:
        """Write `kept.json`, whole or not at all."""
        temporary = directory / f".{layout.KEPT}.tmp"
        facts = {"format_version": layout.FORMAT_VERSION, **asdict(self)}
        temporary.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        temporary.replace(directory / layout.KEPT)


def read_discards(directory: Path) -> Discards:
    """Read what was discarded of a process's recording; nothing where there is no `kept.json`.

    Raises:
        KvtraceError: The file is damaged or of a newer kvtrace.
    """
    path = directory / layout.KEPT
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Discards()
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise DamageError(f"{path} is damaged: it is not a JSON object")
    check_format_version(path, facts.get("format_version"))
    streams, first_strings = facts.get("streams"), facts.get("first_strings")
    if not isinstance(streams, dict) or not isinstance(first_strings, int) or not _is_count(first_strings):
        raise DamageError(f"{path} is damaged: it lacks `streams` or `first_strings`")
    return Discards({name: _discarded(path, name, told) for name, told in streams.items()}, first_strings)


def _discarded(path: Path, name: str, told: Any) -> Discarded:
    expected = set(asdict(Discarded()))
    if not isinstance(told, dict) or set(told) != expected or not all(map(_is_count, told.values())):
        raise DamageError(f"{path} is damaged: stream {name!r:.40} is {told!r:.60}, expected counts of {expected}")
    return Discarded(**told)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
