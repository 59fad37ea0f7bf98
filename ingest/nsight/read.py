"""Streams a table of an export to DuckDB: SQLite to Arrow by ADBC, batch by batch, so that memory does not grow with it.

ADBC types a column from its first batch, so values that may be NULL and are no integers are wrapped. Text comes as bytes,
for old exports hold some that is no UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import duckdb
import numpy as np
import pyarrow as pa

from kvtrace.errors import KvtraceError
from kvtrace.ingest import columns
from kvtrace.ingest.gpu.kernels import KernelNames, Name
from kvtrace.ingest.nsight.export import Export, damaged
from kvtrace.ingest.nsight.tables import Import, Kind, Read

BATCH_ROWS = 65_536
_PRESENT = "__present"
_ARROW = {
    Kind.integer: pa.int64(),
    Kind.text: pa.large_string(),
    Kind.name: pa.dictionary(pa.int32(), pa.large_string()),
    Kind.real: pa.float64(),
    Kind.kernel: pa.int32(),
}
_VALUE: dict[Kind, Callable[[str], str]] = {
    Kind.integer: lambda alias: f'"{alias}"',
    Kind.text: lambda alias: f"nullif(\"{alias}\", '')",
    Kind.name: lambda alias: f'"{alias}"',
    Kind.real: lambda alias: f'CASE WHEN NOT isnan("{alias}") THEN "{alias}" END',
    Kind.kernel: lambda alias: f'"{alias}"',
}
"""SQL for a value read: what stands for "none" becomes NULL."""

Progress = Callable[[int], None]
"""Told how many more rows were read."""


class Reading(NamedTuple):
    """A table to read: of which export, and what its kernels' names are kept in."""

    export: Export
    source_id: int
    what: Import
    kernels: KernelNames


def import_table(connection: duckdb.DuckDBPyConnection, reading: Reading, progress: Progress) -> int:
    """Append an export's table to its target; returns the rows read.

    Raises:
        KvtraceError: SQLite cannot read the table, or it holds something else than it should.
    """
    stream = _Stream(reading, progress)
    connection.register("captured", pa.RecordBatchReader.from_batches(stream.schema, stream.batches()))
    try:
        connection.execute(_insert(connection, reading, stream.reads))
    except BaseException:
        if stream.error is not None:  # DuckDB wraps what goes wrong while it pulls; say the real thing
            raise _explained(reading, stream.error) from stream.error
        raise
    finally:
        connection.unregister("captured")
    return stream.rows


def _explained(reading: Reading, error: BaseException) -> BaseException:
    if isinstance(error, (adbc_driver_manager.Error, pa.ArrowException, OverflowError, TypeError, ValueError)):
        return damaged(reading.export.path, ValueError(f"table {reading.what.table}: {error}"))
    return error


def _insert(connection: duckdb.DuckDBPyConnection, reading: Reading, reads: list[Read]) -> str:
    what = reading.what
    have = {read.alias for read in reads}
    values = [
        f'{_VALUE[read.kind](read.alias) if read.alias in have else "NULL"} AS "{read.alias}"' for read in what.reads
    ]
    targets, expressions = ["source_id"], [str(reading.source_id)]
    if what.key:
        row = connection.execute(f"SELECT coalesce(max({what.key}), 0) FROM {what.target}").fetchone()
        targets.append(what.key)
        expressions.append(f"row_number() OVER () + {int(row[0]) if row else 0}")
    targets += what.insert
    expressions += what.insert.values()
    return (
        f"INSERT INTO {what.target} ({', '.join(targets)}) SELECT {', '.join(expressions)} "
        f"FROM (SELECT {', '.join(values)} FROM captured) {what.join}"
    )


class _Stream:
    """An export's table as Arrow batches, ids and bytes translated."""

    def __init__(self, reading: Reading, progress: Progress) -> None:
        self._export = reading.export
        self._what = reading.what
        self._progress = progress
        self._actual = reading.export.columns[reading.what.table]
        self.reads = [read for read in reading.what.reads if self._columns(read)]
        self.schema = pa.schema([(read.alias, _ARROW[read.kind]) for read in self.reads])
        self._keys = _Keys(reading) if any(read.kind is Kind.kernel for read in self.reads) else None
        self.rows = 0
        self.error: BaseException | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Pull the rows. What goes wrong is kept in `error`."""
        try:
            with (
                adbc_driver_sqlite.dbapi.connect(self._export.uri) as database,
                database.cursor() as cursor,
            ):
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                cursor.execute(self._select())
                for batch in cursor.fetch_record_batch():
                    arrays = [self._array(read, batch) for read in self.reads]
                    yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
                    self.rows += batch.num_rows
                    self._progress(batch.num_rows)
        except BaseException as error:
            self.error = error
            raise

    def _columns(self, read: Read) -> list[str]:
        return [self._actual[name.lower()] for name in read.columns if name.lower() in self._actual]

    def _select(self) -> str:
        values = []
        for read in self.reads:
            quoted = [f'"{name}"' for name in self._columns(read)]
            first = f"coalesce({', '.join(quoted)})" if len(quoted) > 1 else quoted[0]
            if read.kind is Kind.text:
                values.append(f"CAST(ifnull({first}, '') AS BLOB) AS \"{read.alias}\"")
            elif read.kind is Kind.real:
                values.append(f'ifnull({first}, 0.0) * 1.0 AS "{read.alias}"')
                values.append(f'{first} IS NOT NULL AS "{read.alias}{_PRESENT}"')
            elif read.kind is Kind.kernel:
                values += [f'{name} AS "{read.alias}{number}"' for number, name in enumerate(quoted)]
            else:
                values.append(f'{first} AS "{read.alias}"')
        return f'SELECT {", ".join(values)} FROM "{self._what.table}"'

    def _array(self, read: Read, batch: pa.RecordBatch) -> pa.Array[Any]:
        if read.kind is Kind.kernel and self._keys is not None:
            return self._keys.of([self._integers(batch, f"{read.alias}{n}") for n in range(len(self._columns(read)))])
        if read.kind is Kind.text:
            return _texts(batch.column(read.alias))
        if read.kind is Kind.real:
            present = self._integers(batch, f"{read.alias}{_PRESENT}").to_numpy(zero_copy_only=False)
            values = batch.column(read.alias).cast(pa.float64()).to_numpy(zero_copy_only=False)
            return columns.numbers(np.where(present == 1, values, np.nan), pa.float64())
        integers = self._integers(batch, read.alias)
        return self._names(integers) if read.kind is Kind.name else integers

    def _integers(self, batch: pa.RecordBatch, alias: str) -> pa.Array[Any]:
        values = batch.column(alias)
        if pa.types.is_int64(values.type):
            return values
        if values.null_count == len(values) or pa.types.is_integer(values.type):
            return values.cast(pa.int64())
        raise KvtraceError(
            f"{self._export.path}: table {self._what.table} holds {values.type} where {alias} should be a whole number; "
            "the export is damaged, make it again with nsys export --type sqlite --force-overwrite true"
        )

    def _names(self, ids: pa.Array[Any]) -> pa.Array[Any]:
        encoded = ids.dictionary_encode()
        names = [self._export.name(number) for number in encoded.dictionary.to_pylist()]
        return pa.DictionaryArray.from_arrays(encoded.indices, columns.texts(names))


class _Keys:
    """Turns the ids of kernels' names into keys of table `kernel_name`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        (read,) = (read for read in reading.what.reads if read.kind is Kind.kernel)
        actual = reading.export.columns[reading.what.table]
        self._which = [name for name in read.columns if name.lower() in actual]
        self._keys: dict[int, int] = {}

    def of(self, ids: list[pa.Array[Any]]) -> pa.Array[Any]:
        """The keys of a batch, from the arrays of its name columns. A kernel goes by its best name's id."""
        filled = [values.fill_null(0).to_numpy(zero_copy_only=False) for values in ids]
        best = filled[0]
        for other in filled[1:]:
            best = np.where(best == 0, other, best)
        distinct, first, inverse = np.unique(best, return_index=True, return_inverse=True)
        keys = np.array(
            [
                self._key(number, [int(v[row]) for v in filled])
                for number, row in zip(distinct.tolist(), first, strict=True)
            ],
            np.int32,
        )
        return columns.numbers(np.ascontiguousarray(keys[inverse]), pa.int32())

    def _key(self, number: int, ids: list[int]) -> int:
        key = self._keys.get(number)
        if key is None:
            name = self._reading.export.name
            known = {which: name(found) for which, found in zip(self._which, ids, strict=True) if found}
            best = known.get("demangledName") or known.get("mangledName") or known.get("shortName") or f"#{number}"
            names = Name(self._reading.source_id, known.get("shortName"), best, known.get("mangledName"))
            key = self._keys[number] = self._reading.kernels.add(names)
        return key


def _texts(values: pa.Array[Any]) -> pa.Array[Any]:
    """Bytes as text, what is no UTF-8 patched."""
    return columns.texts([value.decode("utf-8", "replace") for value in values.to_pylist()])
