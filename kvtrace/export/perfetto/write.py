"""Writes a trace for Perfetto: files of bounded size, each of which opens alone, and a manifest of what is in which."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.compute as pc

from kvtrace.errors import KvtraceError
from kvtrace.export.perfetto.draw import Drawing
from kvtrace.export.perfetto.merge import rounds
from kvtrace.export.perfetto.packets import Drawn, Encoder
from kvtrace.export.perfetto.sources import SOURCES
from kvtrace.export.perfetto.tracks import Names, Tracks
from kvtrace.export.place import MANIFEST, whole_folder, write_manifest
from kvtrace.export.tables import facts, select, tables
from kvtrace.queries import Trace

MOST_BYTES = 500_000_000
"""Perfetto's page in the browser reads up to about 2 GB of memory, which a trace of this size stays below."""

_READ_ELSEWHERE = ("run", "process", "engine", "gpu_process", "profiled_process", "profiled_thread")
"""Tables that tracks and manifest take their names from."""


@dataclass
class Slice:
    """A file of an export.

    Args:
        file: Its name.
        bytes: Its size.
        start_ns: Start of its first row.
        end_ns: Start of its last row; rows belong to the file in which they start.
        rows: Rows by what they are.
    """

    file: str
    bytes: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    rows: Counter[str] = field(default_factory=Counter)

    def count(self, drawn: Drawn) -> None:
        """Note that rows are in the file."""
        starts: Any = pc.min_max(drawn.rows["start_ns"]).as_py()
        self.start_ns = min(starts["min"], self.start_ns or starts["min"])
        self.end_ns = max(starts["max"], self.end_ns or starts["max"])
        self.rows.update(_counts(drawn))


class Slices:
    """The files of an export, one after the other."""

    def __init__(self, folder: Path, tracks: Tracks, most_bytes: int) -> None:
        self.done: list[Slice] = []
        self._folder = folder
        self._tracks = tracks
        self._most_bytes = most_bytes
        self._file: BinaryIO | None = None
        self._encoder = Encoder(tracks)

    def add(self, batch: list[Drawn]) -> None:
        """Add rows; in a new file if they do not fit."""
        parts = self._encode(batch) if self._file else []
        if not self._file or self.done[-1].bytes + sum(map(len, parts)) > self._most_bytes:
            self._open(min(pc.min(drawn.rows["start_ns"]).as_py() for drawn in batch))
            parts = self._encode(batch)
        for part in parts:
            self._write(part)
        if self.done[-1].bytes > self._most_bytes:
            raise KvtraceError(
                f"{sum(len(drawn.rows) for drawn in batch):,} rows do not fit into {self._most_bytes:,} bytes; "
                "allow larger files with --slice-mb"
            )
        for drawn in batch:
            self.done[-1].count(drawn)

    def close(self) -> None:
        """End the last file."""
        if self._file:
            self._file.close()

    def _encode(self, batch: list[Drawn]) -> list[bytes]:
        return [part for drawn in batch for part in self._encoder.encode(drawn)]

    def _open(self, time_ns: int) -> None:
        self.close()
        self.done.append(Slice(f"{len(self.done):03}.perfetto-trace"))
        self._encoder = Encoder(self._tracks)
        self._file = (self._folder / self.done[-1].file).open("wb")
        self._write(self._encoder.opening(time_ns))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(data)
        self.done[-1].bytes += len(data)


def export_perfetto(path: Path, folder: Path, *, most_bytes: int = MOST_BYTES, force: bool = False) -> list[Slice]:
    """Write a trace as Perfetto's track events.

    Args:
        path: The trace.
        folder: Where to; its files are `000.perfetto-trace` and so on, in the order of time.
        most_bytes: Most bytes of a file.
        force: Replace an earlier export.

    Returns:
        The files.

    Raises:
        KvtraceError: the trace cannot be read, or the folder not be written.
    """
    tracks = Tracks()
    with Trace(path) as trace, whole_folder(folder, force=force) as temporary:
        slices = Slices(temporary, tracks, most_bytes)
        drawing = Drawing(Names(trace), tracks)
        try:
            for stretch in rounds(path, SOURCES):
                slices.add([drawing.draw(source, rows) for source, rows in stretch])
        finally:
            slices.close()
        rows = sum((each.rows for each in slices.done), Counter[str]())
        files = [vars(each) for each in slices.done]
        found = {**facts(trace), "rows": rows, "not_drawn": _not_drawn(trace), "files": files}
        write_manifest(temporary / MANIFEST, "perfetto", found)
    return slices.done


def _not_drawn(trace: Trace) -> dict[str, int]:
    """Rows of the tables that no source reads, or a view that one reads: they are in other exports only."""
    read = "\n".join(source.sql for source in SOURCES)
    views = trace.sql("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal", "arrow")
    unread = dict(zip(views["view_name"].to_pylist(), views["sql"].to_pylist(), strict=True))
    while named := [view for view in unread if re.search(rf"\b{view}\b", read)]:
        read += "\n".join(str(unread.pop(view)) for view in named)
    left = [name for name in tables(trace, views=False) if not re.search(rf"\b{name}\b", read)]
    counts = {name: trace.sql(f"SELECT count(*) AS n {select(name)}", "arrow")["n"][0].as_py() for name in left}
    return {name: count for name, count in counts.items() if count and name not in _READ_ELSEWHERE}


def _counts(drawn: Drawn) -> dict[str, int]:
    """Rows by what they are: a source's name, or the category of each."""
    if "category" not in drawn.rows.schema.names:
        return {drawn.source.name: len(drawn.rows)}
    counts: Any = pc.value_counts(drawn.rows["category"])
    return {row["values"]: row["counts"] for row in counts.to_pylist()}
