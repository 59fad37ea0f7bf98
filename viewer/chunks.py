"""Stores of a page's columns while it is made, and the cutting of long tables so that a view loads little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.viewer.columns import least_and_most, pack
from kvtrace.viewer.data_set import DataSet

Reference = dict[str, Any]
"""A chunk in the page's table of contents: `id`, `rows`, and `from_ns`, `to_ns`, `first`, `last` where known."""


class Sink(Protocol):
    """Takes packed chunks."""

    def put(self, name: str, text: str) -> bool:
        """Keep a chunk; false if there is no room for it."""


class Writer:
    """Packs tables into a sink, under names that are unique in the page."""

    def __init__(self, sink: Sink, prefix: str) -> None:
        self._sink, self._prefix = sink, prefix
        self.left_out: dict[str, int] = {}
        """Rows for which the page had no room, by the chunk's kind."""

    def add(self, name: str, table: pa.Table, data: DataSet, **facts: Any) -> list[Reference]:
        """The reference to a table that was kept; nothing for an empty one or where there is no room.

        Raises:
            ValueError: the table is not as `data` declares it.
        """
        data.check(table)
        if not table.num_rows:
            return []
        identity = f"{self._prefix}-{name}"
        if not self._sink.put(identity, pack(table, data.deltas, data.name)):
            kind = name.split("-", maxsplit=1)[0]
            self.left_out[kind] = self.left_out.get(kind, 0) + table.num_rows
            return []
        return [{"id": identity, "rows": table.num_rows, **facts}]

    def add_cut(self, name: str, table: pa.Table, rows: int, data: DataSet, key: str | None = None) -> list[Reference]:
        """A table sorted by `start_ns` in chunks of at most `rows` rows; `key`: a column whose range they tell."""
        found: list[Reference] = []
        for number, part in enumerate(cut(table, rows)):
            found += self.add(f"{name}-{number}", part, data, **span(part), **(_range(part, key) if key else {}))
        return found


def cut(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Consecutive slices of at most `rows` rows."""
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def span(table: pa.Table) -> dict[str, int]:
    """Return the first start and the last end of a table's rows. A table may lack `end_ns`."""
    first, last = least_and_most(table["start_ns"])
    ends = pc.max(table["end_ns"]).as_py() if "end_ns" in table.column_names else None
    return {"from_ns": first, "to_ns": last if ends is None else max(last, ends)}


def _range(table: pa.Table, key: str) -> dict[str, int]:
    first, last = least_and_most(table[key])
    return {"first": first, "last": last}


class MemorySink:
    """A sink in memory that holds at most `room` characters, with what stands around each chunk in the page."""

    AROUND = 160
    """Characters of a chunk's element and of its place in the table of contents."""

    def __init__(self, room: int) -> None:
        self.room, self.chunks = room, dict[str, str]()

    def put(self, name: str, text: str) -> bool:
        """Keep a chunk unless it is too much."""
        if len(text) + self.AROUND > self.room:
            return False
        self.room -= len(text) + self.AROUND
        self.chunks[name] = text
        return True


class WriterSink:
    """A sink that hands every chunk on at once, so that a large trace is never in memory as a whole."""

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self._write = write

    def put(self, name: str, text: str) -> bool:
        """Hand a chunk on."""
        self._write(name, text)
        return True
