"""Tables as CSV, one file a table. Batches pass; nothing is held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from kvtrace.export.place import MANIFEST, whole_folder, write_manifest
from kvtrace.export.tables import facts, select, tables
from kvtrace.queries import Trace
from kvtrace.queries.writers import Limited, write_csv


class Counted(Limited):
    """A result that counts its rows as they pass."""

    rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in super().__iter__():
            self.rows += batch.num_rows
            yield batch


def export_csv(path: Path, folder: Path, *, views: bool = False, force: bool = False) -> dict[str, int]:
    """Write every table as `NAME.csv`: a header, text in quotes, NULL as nothing at all.

    Args:
        path: The trace.
        folder: Where to.
        views: Write the views too.
        force: Replace an earlier export.

    Returns:
        Rows by table.

    Raises:
        KvtraceError: the trace cannot be read, or the folder not be written.
    """
    rows: dict[str, int] = {}
    with Trace(path) as trace, whole_folder(folder, force=force) as temporary:
        for name in tables(trace, views=views):
            result = Counted(trace.sql(select(name), "batches"))
            with (temporary / f"{name}.csv").open("wb") as file:
                write_csv(result, file)
            rows[name] = result.rows
        write_manifest(temporary / MANIFEST, "csv", {**facts(trace), "rows": rows})
    return rows
