"""Reads all sources side by side in the order of time, a few batches of each at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvtrace.errors import KvtraceError
from kvtrace.export.perfetto.source import Source
from kvtrace.queries import Trace
from kvtrace.queries.writers import Limited

BATCH_ROWS = 32_768


class _Stream:
    """A source's rows, of which those not yet taken are held."""

    def __init__(self, source: Source, trace: Trace) -> None:
        self.source = source
        self._batches = iter(Limited(trace.sql(source.sql, "batches", batch_rows=BATCH_ROWS)))
        self._held = self._next()

    @property
    def held_to_ns(self) -> int | None:
        """The start of the last row held; None at the end."""
        return None if self._held is None else int(self._held["start_ns"][-1].as_py())

    def take(self, to_ns: int) -> pa.RecordBatch | None:
        """The held rows that start by then."""
        if self._held is None:
            return None
        count = int(np.searchsorted(self._held["start_ns"].to_numpy(), to_ns, side="right"))
        taken = self._held.slice(0, count)
        self._held = self._held.slice(count) if count < len(self._held) else self._next()
        return taken if count else None

    def _next(self) -> pa.RecordBatch | None:
        batch = next(self._batches, None)
        if batch is not None and batch["start_ns"].null_count:
            raise KvtraceError(f"a row of {self.source.name} has no start: ingest the recording again")
        return batch


def rounds(path: Path, sources: tuple[Source, ...]) -> Iterator[list[tuple[Source, pa.RecordBatch]]]:
    """Rows of all sources, a stretch of time after the other; in a stretch, the sources in their order.

    Raises:
        KvtraceError: a query failed or a source has a row without a start.
    """
    with ExitStack() as stack:
        streams = [_Stream(source, stack.enter_context(Trace(path))) for source in sources]
        while ends := [end for stream in streams if (end := stream.held_to_ns) is not None]:
            to_ns = min(ends)
            taken = [(stream.source, rows) for stream in streams if (rows := stream.take(to_ns)) is not None]
            yield taken
