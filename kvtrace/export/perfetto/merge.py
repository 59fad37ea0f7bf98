"""Reads all sources side by side in the order of time, a few batches of each at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

    @property
    def held_from_ns(self) -> int | None:
        """The start of the first row held; None at the end."""
        return None if self._held is None else int(self._held["start_ns"][0].as_py())

    def take(self, to_ns: int) -> pa.RecordBatch | None:
        """The held rows that start by then."""
        if self._held is None:
            return None
        count = int(np.searchsorted(self._held["start_ns"].to_numpy(), to_ns, side="right"))
        taken = self._held.slice(0, count)
        self._held = self._held.slice(count) if count < len(self._held) else self._next()
        return taken if count else None

    def _next(self) -> pa.RecordBatch | None:
        """The next rows that have a start: what an imported file gives no time has no place on a timeline."""
        for batch in self._batches:
            timed = batch.filter(pc.is_valid(batch["start_ns"])) if batch["start_ns"].null_count else batch
            if len(timed):
                return timed
        return None


def rounds(path: Path, sources: tuple[Source, ...]) -> Iterator[list[tuple[Source, pa.RecordBatch]]]:
    """Rows of all sources, a stretch of time after the other; in a stretch, the sources in their order.

    Perfetto has no times below 0. Where a source counts from its own start and something was before that, all times
    are moved so that the first is 0.

    Raises:
        KvtraceError: a query failed.
    """
    with ExitStack() as stack:
        streams = [_Stream(source, stack.enter_context(Trace(path))) for source in sources]
        below_ns = min((0, *(first for stream in streams if (first := stream.held_from_ns) is not None)))
        while ends := [end for stream in streams if (end := stream.held_to_ns) is not None]:
            to_ns = min(ends)
            taken = [(stream.source, rows) for stream in streams if (rows := stream.take(to_ns)) is not None]
            yield [(source, _moved(rows, -below_ns)) for source, rows in taken] if below_ns else taken


def _moved(rows: pa.RecordBatch, by_ns: int) -> pa.RecordBatch:
    """Rows with their times later by so much."""
    for name in ("start_ns", "end_ns"):
        moved = pc.add(rows[name], pa.scalar(by_ns, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), name, moved)
    return rows
