"""Columns inside a page: an Arrow IPC stream, gzipped, base64. Narrow integers, times as differences.

Base64 has no character that could end the script element that holds it, whatever names a trace contains.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DELTA = {b"kvtrace": b"delta"}
_LEVEL = 6


def pack(table: pa.Table, deltas: Collection[str] = (), data_set: str = "") -> str:
    """Pack a table as text, with the name of its data set.

    The columns named in `deltas` (integers without NULL) become their first value, then differences.
    """
    columns, fields = [], []
    for name in table.column_names:
        values = table[name].combine_chunks()
        if name in deltas:
            values = pa.array(np.diff(values.to_numpy(zero_copy_only=False), prepend=0))
        values = _narrow(values)
        columns.append(values)
        fields.append(pa.field(name, values.type, metadata=_DELTA if name in deltas else None))
    batch = pa.record_batch(columns, schema=pa.schema(fields, {"kvtrace": data_set}))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(gzip.compress(sink.getvalue(), _LEVEL, mtime=0)).decode()


def unpack(text: str) -> pa.Table:
    """The table in a chunk of a page."""
    with pa.ipc.open_stream(gzip.decompress(base64.b64decode(text))) as reader:
        table = reader.read_all()
    for index, field in enumerate(table.schema):
        if field.metadata == _DELTA:
            whole = np.cumsum(table[field.name].to_numpy().astype(np.int64))
            table = table.set_column(index, field.name, pa.array(whole))
    return table


def _narrow(values: Any) -> Any:
    """Integers as few bytes wide as their values allow; repeated text once."""
    if pa.types.is_dictionary(values.type):
        return values
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values.cast(pa.string()).dictionary_encode()
    if not pa.types.is_integer(values.type):
        return values
    least, most = least_and_most(values)
    if least is None or most is None:
        return values.cast(pa.int8())
    for width in (pa.int8(), pa.int16(), pa.int32()):
        bits = width.bit_width - 1
        if -(1 << bits) <= least and most < 1 << bits:
            return values.cast(width)
    return values.cast(pa.int64())


def least_and_most(values: Any) -> tuple[Any, Any]:
    """The smallest and the greatest value of a column; None where there is none."""
    found: Any = pc.min_max(values).as_py()
    return found["min"], found["max"]
