"""The header of a documented SQL file: comment lines before the SELECT. Queries and views are such files.

    -- The first line.
    --
    -- A paragraph.
    --
    -- KIND: an entry, whose continued line is
    --     indented by four more spaces.

Which kinds of entries there are, each of the two says itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvtrace.errors import KvtraceError

SOURCES = ("recorded", "derived", "inferred")
"""How a value came about: copied from what was recorded, computed from it, or guessed by a rule."""

UNITS = (
    "ns",
    "us",
    "ms",
    "s",
    "tokens",
    "blocks",
    "block-s",
    "bytes",
    "bytes/s",
    "GB/s",
    "requests",
    "tokens/s",
    "requests/s",
    "jobs/s",
    "steps",
    "accesses",
    "transfers",
    "ratio",
    "ppb",
    "ms/token",
    "ms/turn",
    "us/token",
    "us/block",
)

_COLUMN = re.compile(r"(?P<name>[a-z]\w*)(?: \[(?P<unit>[^\]]+)\])? (?P<source>[a-z]+) \| (?P<meaning>.+)")


@dataclass(frozen=True)
class Column:
    """A column of an answer or view: its unit, if it has one, and where the value comes from (one of `SOURCES`)."""

    name: str
    unit: str | None
    source: str
    meaning: str

    @property
    def doc(self) -> str:
        """The meaning, and that it was not recorded if it was not."""
        return self.meaning if self.source == "recorded" else f"{self.meaning} {self.source.capitalize()}."


@dataclass(frozen=True)
class Header:
    """The paragraphs of a header, each on one line, and its entries in order, each with its kind."""

    prose: tuple[str, ...]
    entries: tuple[tuple[str, str], ...]

    def all(self, kind: str) -> list[str]:
        """The entries of a kind."""
        return [entry for each, entry in self.entries if each == kind]

    def names(self, kind: str) -> tuple[str, ...]:
        """The names that the entries of a kind list, with commas between."""
        return tuple(name.strip() for entry in self.all(kind) for name in entry.split(","))


def read(file: str, text: str, kinds: Sequence[str]) -> tuple[Header, str]:
    """Split a file into its header and its SELECT.

    Args:
        file: Its name, for messages.
        text: What is in it.
        kinds: The kinds of entries it may have.

    Raises:
        KvtraceError: it lacks one of the two, or the header does not follow the format in this module's docstring.
    """
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    body = "\n".join(lines[end:]).strip() + "\n"
    header = _header(file, [line[2:] for line in lines[:end]], kinds)
    if not header.prose or not body.strip():
        raise KvtraceError(f"{file}: expected a header of comments that starts with a sentence, then a SELECT")
    return header, body


def column(file: str, entry: str) -> Column:
    """Read `NAME [UNIT] SOURCE | MEANING`.

    Raises:
        KvtraceError: it is something else, or has an unknown unit or source.
    """
    match = _COLUMN.fullmatch(entry)
    if match is None or match["source"] not in SOURCES or match["unit"] not in (None, *UNITS):
        raise KvtraceError(
            f"{file}: `column: {entry}` is not NAME [UNIT] SOURCE | MEANING "
            f"with a unit of {', '.join(UNITS)} and a source of {', '.join(SOURCES)}"
        )
    return Column(match["name"], match["unit"], match["source"], match["meaning"])


def _header(file: str, lines: list[str], kinds: Sequence[str]) -> Header:
    prose: list[str] = []
    entries: list[tuple[str, str]] = []
    starts = re.compile(rf"({'|'.join(kinds)}): (.+)")
    fresh = True
    for line in lines:
        text = line.strip()
        if not text:
            fresh = True
        elif entry := starts.fullmatch(text):
            entries.append((entry[1], entry[2]))
        elif entries and line.startswith("     "):
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {text}")
        elif entries:
            listed = ", ".join(f"`{kind}:`" for kind in kinds)
            raise KvtraceError(f"{file}: expected {listed} or an indented line, found {text!r}")
        elif fresh:
            prose.append(text)
            fresh = False
        else:
            prose[-1] = f"{prose[-1]} {text}"
    return Header(tuple(prose), tuple(entries))
