"""Turns what SQLite holds into what DuckDB takes: ids to names, bytes to text, kernels' names to keys."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kvtrace.errors import KvtraceError
from kvtrace.ingest import columns
from kvtrace.ingest.gpu.kernels import KernelNames, Name
from kvtrace.ingest.importers.nsight.export import Export
from kvtrace.ingest.importers.nsight.tables import Import, Kind, Read

_PRESENT = "__present"
_ARROW: dict[Kind, pa.DataType] = {
    Kind.integer: pa.int64(),
    Kind.text: pa.large_string(),
    Kind.name: pa.dictionary(pa.int32(), pa.large_string()),
    Kind.real: pa.float64(),
    Kind.kernel: pa.int32(),
}


class Piece(NamedTuple):
    """A range of row ids, both ends included; None is no bound."""

    first: int | None
    last: int | None

    @property
    def where(self) -> str:
        """The condition that selects it."""
        return "true" if self.first is None else f"rowid BETWEEN {self.first} AND {self.last}"


class UnknownNamesError(Exception):
    """Ids of kernels' names that StringIds lacks, while a row has other names."""

    def __init__(self, ids: set[int]) -> None:
        self.ids = frozenset(ids)


class Values:
    """The values that are read of a table: how they are selected, and what is made of them."""

    def __init__(self, export: Export, source_id: int, what: Import, kernels: KernelNames) -> None:
        self._export = export
        self._table = what.table
        self._actual = export.columns[what.table]
        self.reads = [read for read in what.reads if self._columns(read)]
        self.schema = [(read.alias, _ARROW[read.kind]) for read in self.reads]
        self.unknown: frozenset[int] = frozenset()
        self._keys = _Keys(export, source_id, what.table, kernels)

    def select(self, piece: Piece) -> str:
        """SQL for SQLite."""
        values = []
        for read in self.reads:
            first = self._first(read)
            if read.kind is Kind.text:
                values.append(f"CAST(ifnull({first}, '') AS BLOB) AS \"{read.alias}\"")
            elif read.kind is Kind.real:
                values.append(f'ifnull({first}, 0.0) * 1.0 AS "{read.alias}"')
                values.append(f'{first} IS NOT NULL AS "{read.alias}{_PRESENT}"')
            else:
                values.append(f'{first} AS "{read.alias}"')
        return f"SELECT {', '.join(values)} FROM {self._export.sql(self._table)} WHERE {piece.where}"

    def translate(self, batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
        """A batch as DuckDB gets it.

        Raises:
            UnknownNamesError: Kernels' names are not there. Put the ids into `unknown` and read the piece again: the
                next column that has a name counts.
        """
        arrays = [self._array(read, batch, piece) for read in self.reads]
        return pa.RecordBatch.from_arrays(arrays, names=[read.alias for read in self.reads])

    def keys(self, first: int, count: int) -> pa.Array[Any]:
        """Consecutive numbers."""
        return columns.numbers(np.arange(first, first + count, dtype=np.int64), pa.int64())

    def _columns(self, read: Read) -> list[str]:
        return [self._actual[name.lower()] for name in read.columns if name.lower() in self._actual]

    def _first(self, read: Read) -> str:
        quoted = [f'"{name}"' for name in self._columns(read)]
        if read.kind is Kind.kernel and self.unknown:
            known = f"NOT IN ({', '.join(map(str, sorted(self.unknown)))})"
            quoted = [*(f"CASE WHEN {name} {known} THEN {name} END" for name in quoted), quoted[0]]
        return f"coalesce({', '.join(quoted)})" if len(quoted) > 1 else quoted[0]

    def _array(self, read: Read, batch: pa.RecordBatch, piece: Piece) -> pa.Array[Any]:
        if read.kind is Kind.text:
            return _texts(batch.column(read.alias))
        if read.kind is Kind.real:
            present = self._integers(batch, f"{read.alias}{_PRESENT}").to_numpy(zero_copy_only=False)
            values = batch.column(read.alias).cast(pa.float64()).to_numpy(zero_copy_only=False)
            return columns.numbers(np.where(present == 1, values, np.nan), pa.float64())
        integers = self._integers(batch, read.alias)
        if read.kind is Kind.integer:
            return integers
        encoded: Any = integers.dictionary_encode()
        ids = encoded.dictionary.to_pylist()
        if read.kind is Kind.name:
            return pa.DictionaryArray.from_arrays(encoded.indices, columns.texts([self._export.name(i) for i in ids]))
        if unknown := {i for i in ids if i is not None and i not in self.unknown and not self._export.has_name(i)}:
            raise UnknownNamesError(unknown)
        keys = np.array([self._keys.of(i, self._first(read), piece) for i in ids], np.int32)
        return columns.numbers(keys, pa.int32()).take(encoded.indices)

    def _integers(self, batch: pa.RecordBatch, alias: str) -> pa.Array[Any]:
        values: pa.Array[Any] = batch.column(alias)
        if pa.types.is_int64(values.type):
            return values
        if values.null_count == len(values) or pa.types.is_integer(values.type):
            cast: pa.Array[Any] = values.cast(pa.int64())
            return cast
        raise KvtraceError(
            f"{self._export.path}: table {self._table} holds {values.type} where {alias} should be a whole number; the "
            "export is damaged, make it again with nsys export --type sqlite --force-overwrite true"
        )


class _Keys:
    """Keys of table `kernel_name` by the id a kernel goes by. Used by several threads."""

    def __init__(self, export: Export, source_id: int, table: str, kernels: KernelNames) -> None:
        self._export = export
        self._source_id = source_id
        self._table = table
        self._kernels = kernels
        self._keys: dict[int, int] = {}
        self._lock = threading.Lock()

    def of(self, string_id: int, expression: str, piece: Piece) -> int:
        """The key of a name that occurs in a piece, where `expression` is its id."""
        with self._lock:
            key = self._keys.get(string_id)
            if key is None:
                key = self._keys[string_id] = self._kernels.add(self._name(string_id, expression, piece))
            return key

    def _name(self, string_id: int, expression: str, piece: Piece) -> Name:
        """The demangled name and the others of the first such kernel."""
        actual = self._export.columns[self._table]
        others = [f'"{actual[name]}"' if name in actual else "NULL" for name in ("shortname", "mangledname")]
        row = self._export.row(
            f"SELECT {', '.join(others)} FROM {self._export.sql(self._table)} "
            f"WHERE {piece.where} AND {expression} = ? LIMIT 1",
            string_id,
        )
        short, mangled = (self._export.name(found) if isinstance(found, int) else None for found in row or (None, None))
        return Name(self._source_id, short, self._export.name(string_id), mangled)


def _texts(values: Any) -> pa.Array[Any]:
    """Bytes as text, what is no UTF-8 patched."""
    return columns.texts([value.decode("utf-8", "replace") for value in values.to_pylist()])
