"""Tables as files: CSV, one file a table, or Parquet, one folder a table and run. Batches pass; nothing is held."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from kvtrace.errors import KvtraceError
from kvtrace.export.place import MANIFEST, failing_clearly, is_export, whole_folder, write_manifest
from kvtrace.export.tables import facts, run_id, select, tables
from kvtrace.queries import Trace
from kvtrace.queries.writers import Limited, parquet_schema, simplified, write_csv

MOST_BYTES = 512 << 20
"""A part of a Parquet table ends when it is this large."""

_GROUP_ROWS = 1 << 19


class _Counted(Limited):
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
            result = _Counted(trace.sql(select(name), "batches"))
            with (temporary / f"{name}.csv").open("wb") as file:
                write_csv(result, file)
            rows[name] = result.rows
        write_manifest(temporary / MANIFEST, "csv", {**facts(trace), "rows": rows})
    return rows


def export_parquet(
    path: Path,
    folder: Path,
    *,
    run: str | None = None,
    views: bool = False,
    force: bool = False,
    most_bytes: int = MOST_BYTES,
) -> dict[str, int]:
    """Write every table as `table=NAME/run=ID/part-*.parquet`, beside those of other runs.

    A run's manifest, `manifest-ID.json`, is written last: without it the run's files are not whole.

    Args:
        path: The trace.
        folder: Where to; may hold other runs.
        run: What tells the run from others; by default when it started and its process.
        views: Write the views too.
        force: Replace an earlier export of the same run.
        most_bytes: About how large a part may become.

    Returns:
        Rows by table.

    Raises:
        KvtraceError: the trace cannot be read, the folder not be written, or it holds that run already.
    """
    rows: dict[str, int] = {}
    with Trace(path) as trace:
        identity = run_id(trace, run)
        manifest = folder / f"manifest-{identity}.json"
        _check_run(folder, manifest, identity, force=force)
        with failing_clearly(folder):
            folder.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".", suffix=".part"))
            try:
                for name in tables(trace, views=views):
                    part = temporary / _partition(name, identity)
                    part.mkdir(parents=True)
                    result = _Counted(trace.sql(select(name), "batches"))
                    _write_parts(result, part, most_bytes)
                    rows[name] = result.rows
                write_manifest(temporary / manifest.name, "parquet", {"run_id": identity, **facts(trace), "rows": rows})
                manifest.unlink(missing_ok=True)
                _replace_partitions(temporary, folder, identity)
                (temporary / manifest.name).replace(manifest)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return rows


def _partition(table: str, identity: str) -> Path:
    return Path(f"table={table}") / f"run={identity}"


def _check_run(folder: Path, manifest: Path, identity: str, *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise KvtraceError(f"{folder} exists and is no directory; choose another name")
    there = [manifest] if manifest.exists() else sorted(folder.glob(f"table=*/run={identity}"))
    if there and not force:
        raise KvtraceError(
            f"{there[0]} exists: the run {identity} was exported here before. --force replaces it; "
            "--run-id NAME writes this trace as another run"
        )
    if manifest.exists() and not is_export(manifest):
        raise KvtraceError(f"{manifest} is no manifest of kvtrace's; --force does not replace it")


def _write_parts(result: _Counted, folder: Path, most_bytes: int) -> None:
    """Write a result in parts; one without rows as one part, for its columns."""
    schema = parquet_schema(result)
    groups = _groups((simplified(batch, schema) for batch in result), schema)
    group: pa.Table | None = next(groups, schema.empty_table())
    number = 0
    while group is not None:
        with (
            (folder / f"part-{number:05}.parquet").open("wb") as file,
            pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            writer.write_table(group)
            while (group := next(groups, None)) is not None and file.tell() < most_bytes:
                writer.write_table(group)
        number += 1


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches put together to row groups of a size that readers like."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(len(each) for each in held) >= _GROUP_ROWS:
            yield pa.Table.from_batches(held, schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, schema)


def _replace_partitions(new: Path, folder: Path, identity: str) -> None:
    """Move a run's partitions into place; those of an earlier export go first, so that none of its is left."""
    for old in folder.glob(f"table=*/run={identity}"):
        shutil.rmtree(old)
    for partition in sorted(new.glob(f"table=*/run={identity}")):
        target = folder / partition.relative_to(new)
        target.parent.mkdir(exist_ok=True)
        partition.rename(target)
