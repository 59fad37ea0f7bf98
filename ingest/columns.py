"""Arrow arrays from numpy arrays and Python strings, by their buffers.

`pyarrow.array` does the same, but imports pandas on its first call: a quarter of a second that no ingest needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def numbers(values: Any, type_: pa.DataType) -> pa.Array[Any]:
    """A contiguous numpy array as an Arrow array over the same memory, without nulls."""
    array: pa.Array[Any] = pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])
    return array


def texts(values: Sequence[str]) -> pa.Array[Any]:
    """Strings as an Arrow array of type `large_string`."""
    encoded = [value.encode() for value in values]
    offsets: Any = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(value) for value in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    array: pa.Array[Any] = pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)
    return array
