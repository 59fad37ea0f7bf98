"""Results as CSV, JSON or Parquet: each writes record batches to the binary file it is given, and loses nothing."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from kvtrace.errors import KvtraceError
from kvtrace.queries.text import inert


class Limited:
    """The batches of a result up to a number of rows; `more` counts those that were left out, once it is read.

    Args:
        reader: The result. It is read to its end: DuckDB wants that before the next query.
        rows: Most rows to pass on; None for all.

    Raises:
        KvtraceError: while iterating, DuckDB could not go on.
    """

    def __init__(self, reader: pa.RecordBatchReader, rows: int | None = None) -> None:
        self.schema = reader.schema
        self.more = 0
        self._reader = reader
        self._left = rows

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._read():
            passed = batch if self._left is None else batch.slice(0, self._left)
            if self._left is not None:
                self._left -= passed.num_rows
            self.more += batch.num_rows - passed.num_rows
            if passed.num_rows:
                yield passed

    def _read(self) -> Iterator[pa.RecordBatch]:
        """The reader's batches; what goes wrong in DuckDB on the way is its error, not one of writing."""
        while True:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return
            except (OSError, pa.ArrowException) as error:
                raise KvtraceError("\n".join(map(inert, str(error).splitlines()))) from error
            yield batch


def write_csv(result: Limited, file: BinaryIO) -> None:
    """Write CSV: a header line, text in quotes, NULL as nothing at all (an empty text is `""`)."""
    schema = pa.schema([pa.field(column.name, _csv_type(column.type)) for column in result.schema])
    text = io.BytesIO()
    with pa.csv.CSVWriter(text, schema) as writer:
        _move(text, file)
        for batch in result:
            writer.write_batch(simplified(batch, schema))
            _move(text, file)


def write_json(result: Limited, file: BinaryIO) -> None:
    """Write one JSON array with an object a row, a row a line. Whole numbers are exact, however large.

    JSON has no NaN, infinities, binary data or dates: those become text.
    """
    _check_names(result)
    separator = "["
    for batch in result:
        for row in batch.to_pylist():
            file.write(f"{separator}\n{json.dumps(_jsonable(row), allow_nan=False)}".encode())
            separator = ","
    file.write(b"[]\n" if separator == "[" else b"\n]\n")


def write_parquet(result: Limited, file: BinaryIO) -> None:
    """Write Parquet, with DuckDB's types as Arrow has them; intervals become text."""
    schema = parquet_schema(result)
    with pa.parquet.ParquetWriter(file, schema) as writer:
        for batch in result:
            writer.write_batch(simplified(batch, schema))


def parquet_schema(result: Limited) -> pa.Schema:
    """A result's columns as Parquet can have them.

    Raises:
        KvtraceError: two columns have one name.
    """
    _check_names(result)
    return pa.schema([pa.field(column.name, _parquet_type(column.type)) for column in result.schema])


def _check_names(result: Limited) -> None:
    names = result.schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise KvtraceError(f"two columns are named {twice[0]!r}: give one another name with AS, or write CSV")


def _move(text: io.BytesIO, file: BinaryIO) -> None:
    file.write(text.getvalue())
    text.seek(0)
    text.truncate()


def simplified(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in a simpler schema: what it does not have becomes text."""
    columns = [_convert(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _convert(column: Any, wanted: pa.DataType) -> Any:
    if column.type == wanted:
        return column
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return pa.array([None if value is None else _text(value) for value in column.to_pylist()], pa.string())


def _csv_type(type_: Any) -> Any:
    if pa.types.is_dictionary(type_):
        return type_.value_type
    exotic = pa.types.is_nested(type_) or pa.types.is_interval(type_) or pa.types.is_binary(type_)
    return pa.string() if exotic else type_


def _parquet_type(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_interval(type_) else type_


def _text(value: Any) -> str:
    plain = _jsonable(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _jsonable(value: Any) -> Any:
    """`value` in what JSON has."""
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, pa.MonthDayNano):
        return f"{value.months} months {value.days} days {value.nanoseconds} ns"
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else str(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)
