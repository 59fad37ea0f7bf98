"""Content of a trace's page, read back from its chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from kvtrace.viewer.chunks import MemorySink
from kvtrace.viewer.columns import unpack
from kvtrace.viewer.export import export_run

ROOM = 1 << 30


class Exported:
    """The first engine's part of a page, or another one's."""

    def __init__(self, trace: Path, engine: int = 0, room: int = ROOM) -> None:
        sink = MemorySink(room)
        self.run = export_run(trace, sink, trace.stem)
        self.chunks = sink.chunks
        self.origin = int(self.run["origin_ns"])
        self.engine: dict[str, Any] = self.run["engines"][engine] if self.run["engines"] else {}

    def read(self, references: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """The columns of some chunks, one after the other."""
        tables = [unpack(self.chunks[reference["id"]]) for reference in references]
        columns: dict[str, list[Any]] = pa.concat_tables(tables, promote_options="permissive").to_pydict()
        return columns

    @property
    def steps(self) -> dict[str, list[Any]]:
        return self.read(self.engine["steps"]["levels"][-1])

    @property
    def requests(self) -> dict[str, list[Any]]:
        return self.read(self.engine["requests"]["levels"][-1])

    @property
    def segments(self) -> dict[str, list[Any]]:
        return self.read([{"id": each["segments"]} for each in self.engine["requests"]["levels"][-1]])
