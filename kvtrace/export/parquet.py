"""Tables as Parquet: a folder a table, run and hour, as distributed engines read it. Batches pass; nothing is held.

    table=block_event/run=ID/hour=20261121T06/part-00000.parquet

Rows of a table have their place in the trace as column `rowid`, for files have no order among each other.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from kvtrace.errors import KvtraceError
from kvtrace.export.columns import Counted
from kvtrace.export.place import MANIFEST, failing_clearly, is_export, write_manifest
from kvtrace.export.tables import facts, run_id, tables
from kvtrace.queries import Trace
from kvtrace.queries.writers import parquet_schema, simplified

MOST_BYTES = 512 << 20
"""A part of a Parquet table ends when it is this large."""

NO_HOUR = "none"
"""Rows without a time. Hive's name for NULL is not taken, for a table of these rows alone Arrow could not read."""

_GROUP_ROWS = 1 << 19
_HOUR_NS = 3_600_000_000_000
_MOST_HOURS = 24 * 366
_TIMES = (
    "time_ns", "start_ns", "scheduled_ns", "update_ns", "submitted_ns", "opened_ns", "arrival_ns", "send_ns",
    "finished_ns",
)  # fmt: skip
"""The column that gives a table's rows their hour is the first of these that it has."""


def export_parquet(
    path: Path,
    folder: Path,
    *,
    run: str | None = None,
    views: bool = False,
    force: bool = False,
    most_bytes: int = MOST_BYTES,
) -> dict[str, int]:
    """Write every table as `table=NAME/run=ID/hour=HOUR/part-*.parquet`, beside those of other runs.

    Rows that have a step and no time are in the hour of their step; a table with neither has no hours. A run's
    manifest, `manifest-ID.json`, is written last: without it the run's files are not whole.

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
                stored = set(tables(trace, views=False))
                for name in tables(trace, views=views):
                    target = temporary / f"table={name}" / f"run={identity}"
                    rows[name] = _write_table(trace, name, target, most_bytes, stored=name in stored)
                write_manifest(temporary / manifest.name, "parquet", {"run_id": identity, **facts(trace), "rows": rows})
                manifest.unlink(missing_ok=True)
                _replace_partitions(temporary, folder, identity)
                (temporary / manifest.name).replace(manifest)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return rows


def _check_run(folder: Path, manifest: Path, identity: str, *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise KvtraceError(f"{folder} exists and is no directory; choose another name")
    if is_export(folder / MANIFEST):
        raise KvtraceError(f"{folder} holds an export of another kind; choose another name")
    there = [manifest] if manifest.exists() else sorted(folder.glob(f"table=*/run={identity}"))
    if there and not force:
        raise KvtraceError(
            f"{there[0]} exists: the run {identity} was exported here before. --force replaces it; "
            "--run-id NAME writes this trace as another run"
        )
    if manifest.exists() and not is_export(manifest):
        raise KvtraceError(f"{manifest} is no manifest of kvtrace's; --force does not replace it")


def _write_table(trace: Trace, name: str, folder: Path, most_bytes: int, *, stored: bool) -> int:
    """Write a table's rows, hour by hour and each hour in the table's order; their number."""
    quoted = '"' + name.replace('"', '""') + '"'
    select = f"SELECT {'t.rowid AS rowid, ' if stored else ''}t.* FROM {quoted} t"
    rows = 0
    for hour, condition in _hours(trace, name, quoted):
        part = folder / f"hour={hour}" if hour else folder
        part.mkdir(parents=True)
        result = Counted(trace.sql(f"{select} WHERE {condition}", "batches"))
        _write_parts(result, part, most_bytes)
        rows += result.rows
    if rows != (there := trace.sql(f"SELECT count(*) AS n FROM {quoted}", "arrow")["n"][0].as_py()):
        raise KvtraceError(f"table {name}: {there:,} rows fall into hours {rows:,} times; does a step have two rows?")
    return rows


def _hours(trace: Trace, name: str, quoted: str) -> list[tuple[str, str]]:
    """The hours of a table's rows, each with the condition on its rows; one without a name where there are no times."""
    columns = trace.sql(f"SELECT * FROM {quoted} LIMIT 0", "arrow").column_names
    time = next((column for column in _TIMES if column in columns), None)
    steps = not time and {"engine_id", "step"} <= {*columns}
    if not time and not steps:
        return [("", "true")]
    column = time or "start_ns"
    source = "step_schedule" if steps else quoted
    past = f"({column} % {_HOUR_NS} + {_HOUR_NS}) % {_HOUR_NS}"  # `//` alone rounds times before 1970 up
    found = trace.sql(f"SELECT DISTINCT ({column} - {past}) // {_HOUR_NS} AS hour FROM {source} ORDER BY hour", "arrow")
    hours = [hour for hour in found["hour"].to_pylist() if hour is not None]
    if len(hours) > _MOST_HOURS:
        raise KvtraceError(
            f"table {name}: the times in {column} fall into {len(hours):,} different hours, from {_name(hours[0])} to "
            f"{_name(hours[-1])}; expected a recording of at most a year. Look at them with `kvtrace sql`"
        )
    bounds = [(hour, f"{column} BETWEEN {hour * _HOUR_NS} AND {(hour + 1) * _HOUR_NS - 1}") for hour in hours]
    in_steps = "EXISTS (FROM step_schedule s WHERE s.engine_id = t.engine_id AND s.step = t.step AND s.{})"
    conditions = [(_name(hour), in_steps.format(bound) if steps else f"t.{bound}") for hour, bound in bounds]
    without = "NOT " + in_steps.format("start_ns IS NOT NULL") if steps else f"t.{column} IS NULL"
    if not conditions or trace.sql(f"SELECT 1 FROM {quoted} t WHERE {without} LIMIT 1", "arrow").num_rows:
        conditions.append((NO_HOUR, without))
    return conditions


def _name(hour: int) -> str:
    try:
        return f"{datetime.fromtimestamp(hour * 3600, UTC):%Y%m%dT%H}"
    except (OverflowError, ValueError, OSError):
        return f"{hour}h"


def _write_parts(result: Counted, folder: Path, most_bytes: int) -> None:
    """Write a result in parts; one without rows as one part, for its columns."""
    schema = parquet_schema(result)
    plain = [column for column in schema.names if column != "rowid"]
    groups = _groups((simplified(batch, schema) for batch in result), schema)
    group: pa.Table | None = next(groups, schema.empty_table())
    number = 0
    while group is not None:
        with (
            (folder / f"part-{number:05}.parquet").open("wb") as file,
            pa.parquet.ParquetWriter(
                file,
                schema,
                compression="zstd",
                use_dictionary=plain,  # type: ignore[arg-type]  # or names
                column_encoding={"rowid": "DELTA_BINARY_PACKED"} if "rowid" in schema.names else None,
            ) as writer,
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
