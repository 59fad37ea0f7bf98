"""Rows on their way into a table: kept in Python until there are enough, then handed to DuckDB as Arrow columns."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

BATCH_ROWS = 50_000
_TYPES = {
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UBIGINT": "uint64",
    "UTINYINT": "uint8",
    "DOUBLE": "float64",
    "BOOLEAN": "bool_",
}
"""Functions of pyarrow that make a type, by DuckDB's types; the others are text."""


class Appender:
    """Appends rows to some columns of a table; the others are NULL.

    Args:
        connection: The trace.
        table: The table.
        columns: The columns' names, apart by spaces, in the order of the values of a row.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: str, columns: str) -> None:
        import pyarrow as pa

        self._connection = connection
        self._table = table
        described = connection.execute(f"DESCRIBE {table}").fetchall()
        types = {name: _arrow_type(type_) for name, type_, *_ in described}
        self._schema = pa.schema([(name, types[name]) for name in columns.split()])
        self._rows: list[tuple[Any, ...]] = []
        self.count = 0

    def add(self, *values: object) -> None:
        """Append a row, now or at the next `flush`."""
        self._rows.append(values)
        self.count += 1
        if len(self._rows) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand over what was added."""
        if not self._rows:
            return
        import pyarrow as pa

        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._rows.clear()
        self._connection.register("appended", pa.RecordBatchReader.from_batches(self._schema, [batch]))
        try:
            self._connection.execute(f"INSERT INTO {self._table} BY NAME SELECT * FROM appended")
        finally:
            self._connection.unregister("appended")


def _arrow_type(type_: str) -> pa.DataType:
    import pyarrow as pa

    if type_.endswith("[]"):
        return pa.list_(_arrow_type(type_.removesuffix("[]")))
    found: pa.DataType = getattr(pa, _TYPES.get(type_, "string"))()
    return found


def well_formed(text: str) -> str:
    """Text with question marks for halves of surrogate pairs, which JSON can have and no database takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def whole(value: object, bits: int = 31) -> int | None:
    """A whole number from JSON or text, if it is one and fits; else None."""
    if isinstance(value, str):
        try:
            value = float(value) if set(value) & set(".eE") else int(value)
        except (ValueError, OverflowError):
            return None
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << bits) <= value < 1 << bits else None


def real(value: object) -> float | None:
    """A finite number from JSON or text; else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def nanoseconds(value: object, unit_ns: float) -> int | None:
    """A time or duration in ns, if it is a number and fits into 64 bits. Exact: in decimals, as it was written."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        scaled = Decimal(value if isinstance(value, int) else str(value)) * Decimal(unit_ns)
    except ArithmeticError:
        return None
    return round(scaled) if scaled.is_finite() and abs(scaled) < 1 << 62 else None
