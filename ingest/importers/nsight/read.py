"""Streams a table of an export to DuckDB: SQLite to Arrow by ADBC, piece by piece, so that memory does not grow.

A table is read in ranges of row ids by a few threads, ahead of DuckDB, and handed over in order. ADBC types a column
from its first batch, so values that may be NULL and are no integers are wrapped. Text comes as bytes, for old exports
hold some that is no UTF-8.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import adbc_driver_manager
import adbc_driver_sqlite
import duckdb
import pyarrow as pa

from kvtrace.ingest.gpu.kernels import KernelNames
from kvtrace.ingest.guard import span_sql
from kvtrace.ingest.importers.nsight.export import UNREADABLE, Export, damaged
from kvtrace.ingest.importers.nsight.tables import Import, Kind, Read
from kvtrace.ingest.importers.nsight.values import Piece, UnknownNamesError, Values

PIECE_ROWS = 122_880
LARGEST_PIECES = 4096
BATCH_ROWS = PIECE_ROWS
THREADS = 2
AHEAD = 2 * THREADS

_VALUE: dict[Kind, Callable[[str], str]] = {
    Kind.integer: lambda alias: f'"{alias}"',
    Kind.text: lambda alias: f"nullif(\"{alias}\", '')",
    Kind.name: lambda alias: f'"{alias}"',
    Kind.real: lambda alias: f'CASE WHEN NOT isnan("{alias}") THEN "{alias}" END',
    Kind.kernel: lambda alias: f'"{alias}"',
}
"""SQL for a value read: what stands for "none" becomes NULL."""

_SPAN = ('"start"', '"end"')
_NAMED_ROWS = 3

Progress = Callable[[int], None]
"""Told how many more rows were read."""


@dataclass
class Taken:
    """Rows taken from an export's tables so far."""

    first_keys: dict[str, int] = field(default_factory=dict)  # the key of a table's first row, for details that follow
    with_gaps: set[str] = field(default_factory=set)  # tables of which rows were left out
    warnings: list[str] = field(default_factory=list)


class Reading(NamedTuple):
    """A table to read: of which export, what its kernels' names are kept in, and what was taken before."""

    export: Export
    source_id: int
    what: Import
    kernels: KernelNames
    taken: Taken


def import_table(connection: duckdb.DuckDBPyConnection, reading: Reading, progress: Progress) -> tuple[int, int]:
    """Append an export's table to its target; returns the rows read and those of them that were taken.

    A row whose times cannot be is left out and warned of.

    Raises:
        KvtraceError: SQLite cannot read the table, or it holds something else than it should.
    """
    what = reading.what
    first_key = _first_key(connection, reading)
    stream = _Stream(reading, first_key, progress)
    connection.register("captured", pa.RecordBatchReader.from_batches(stream.schema, stream.batches()))
    try:
        [(taken,)] = connection.execute(_insert(reading, stream.values.reads)).fetchall()
    except BaseException as error:
        if stream.error is not None:  # DuckDB wraps what goes wrong while it pulls; say the real thing
            raise _explained(reading, stream.error) from stream.error
        if isinstance(error, (duckdb.ConversionException, duckdb.OutOfRangeException)):
            raise damaged(reading.export.path, ValueError(f"table {reading.what.table}: {error}")) from error
        raise
    finally:
        with suppress(duckdb.TransactionException):  # it was aborted, and all of it goes
            connection.unregister("captured")
    if stream.values.unknown:
        reading.taken.warnings.append(
            f"{reading.export.path.name}: StringIds lacks {len(stream.values.unknown)} names of kernels in table "
            f"{what.table}; their other names stand for them where they have some"
        )
    if taken < stream.rows:
        reading.taken.with_gaps.add(what.table)
        reading.taken.warnings.append(_left_out(reading, stream.rows - taken))
    elif what.detail and what.table in reading.taken.with_gaps:
        connection.execute(
            f"DELETE FROM {what.target} WHERE {what.key} >= {first_key} "
            f"AND {what.key} NOT IN (SELECT {what.key} FROM gpu_activity)"
        )
    return stream.rows, taken


def _left_out(reading: Reading, count: int) -> str:
    """Return a warning about rows whose times cannot be."""
    table = reading.what.table
    wrong = f"NOT {span_sql(*_SPAN)}"
    try:
        found = reading.export.connection.execute(
            f"SELECT rowid FROM {reading.export.sql(table)} WHERE {wrong} LIMIT {_NAMED_ROWS}"
        ).fetchall()
    except sqlite3.Error:  # a table without row ids
        found = []
    rows = ", ".join(str(row) for (row,) in found) + (", ..." if count > len(found) else "")
    return (
        f"{reading.export.path.name}: {count} rows of table {table} have times that cannot be (they end before they "
        f"begin, or are absurdly long) and were left out: row {rows}"
    )


def _first_key(connection: duckdb.DuckDBPyConnection, reading: Reading) -> int:
    what = reading.what
    if not what.key:
        return 1
    if what.detail:
        return reading.taken.first_keys[what.table]
    [(first,)] = connection.execute(f"SELECT coalesce(max({what.key}), 0) + 1 FROM {what.target}").fetchall()
    reading.taken.first_keys[what.table] = int(first)
    return int(first)


def _explained(reading: Reading, error: BaseException) -> BaseException:
    foreign = (adbc_driver_manager.Error, pa.ArrowException, *UNREADABLE)
    if isinstance(error, foreign):
        return damaged(reading.export.path, ValueError(f"table {reading.what.table}: {error}"))
    return error


def _insert(reading: Reading, reads: list[Read]) -> str:
    what = reading.what
    have = {read.alias for read in reads}
    values = [
        f'{_VALUE[read.kind](read.alias) if read.alias in have else "NULL"} AS "{read.alias}"' for read in what.reads
    ]
    targets, expressions = ([], []) if what.detail else (["source_id"], [str(reading.source_id)])
    if what.key:
        targets.append(what.key)
        expressions.append("row_key")
    targets += what.insert
    expressions += what.insert.values()
    return (
        f"INSERT INTO {what.target} ({', '.join(targets)}) SELECT {', '.join(expressions)} "
        f"FROM (SELECT row_key, {', '.join(values)} FROM captured) {what.join}"
        + (f" WHERE {span_sql(*_SPAN)}" if have >= {"start", "end"} else "")
    )


class _Stream:
    """An export's table as Arrow batches, in the order of its rows."""

    def __init__(self, reading: Reading, first_key: int, progress: Progress) -> None:
        self._export = reading.export
        self._table = reading.what.table
        self._progress = progress
        self._key = first_key
        self.values = Values(reading.export, reading.source_id, reading.what, reading.kernels)
        self.schema = pa.schema([("row_key", pa.int64()), *self.values.schema])
        self.rows = 0
        self.error: BaseException | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Pull the rows. What goes wrong is kept in `error`."""
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="kvtrace-sqlite")
        try:
            pieces = iter(self._pieces())
            ahead = deque(pool.submit(self._read, piece) for piece in islice(pieces, AHEAD))
            while ahead:
                batches = ahead.popleft().result()
                ahead.extend(pool.submit(self._read, piece) for piece in islice(pieces, 1))
                for batch in batches:
                    yield self._keyed(batch)
                    self._progress(batch.num_rows)
        except BaseException as error:
            self.error = error
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _keyed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = self.values.keys(self._key, batch.num_rows)
        self._key += batch.num_rows
        self.rows += batch.num_rows
        return pa.RecordBatch.from_arrays([keys, *batch.columns], schema=self.schema)

    def _pieces(self) -> list[Piece]:
        """Ranges of row ids; one piece without bounds where a table has none."""
        try:
            table = self._export.sql(self._table)
            found = self._export.connection.execute(f"SELECT min(rowid), max(rowid) FROM {table}").fetchone()
        except sqlite3.OperationalError:
            found = None
        if found is None or not isinstance(found[0], int) or not isinstance(found[1], int):
            return [Piece(None, None)]
        first, last = found
        wanted = min(LARGEST_PIECES, 4 * self._export.counts[self._table] // PIECE_ROWS + 1)  # ids may lie far apart
        size = max(PIECE_ROWS, (last - first) // wanted + 1)
        return [Piece(start, start + size - 1) for start in range(first, last + 1, size)]

    def _read(self, piece: Piece) -> list[pa.RecordBatch]:
        while True:
            try:
                return self._read_once(piece)
            except UnknownNamesError as error:
                self.values.unknown |= error.ids

    def _read_once(self, piece: Piece) -> list[pa.RecordBatch]:
        with (
            adbc_driver_sqlite.connect(self._export.uri) as database,  # the DB-API of ADBC imports polars: 0.15 s
            adbc_driver_manager.AdbcConnection(database) as connection,
            adbc_driver_manager.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(self.values.select(piece))
            stream, _ = statement.execute_query()
            return [self.values.translate(batch, piece) for batch in pa.RecordBatchReader.from_stream(stream)]
