"""Protobuf messages of many rows at once: a field is a matrix of bytes with a mask, a message is fields side by side.

Python's protobuf makes one object a message, about 10 us a slice; here numpy does a batch in one go. Field
numbers and types come from the published schema, so no number is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Column = Any
"""A `pyarrow.Array`, whose stubs know neither dictionaries nor lists."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Cells:
    """Bytes of n rows: `data[row]` where `keep[row]`, both n x width, `size[row]` bytes altogether."""

    data: npt.NDArray[np.uint8]
    keep: Flags
    size: Ints


Parts = list[Cells]
"""Cells side by side: they are joined once, at the end."""


def where(parts: Parts, present: Flags) -> Parts:
    """Only in the rows that are present."""
    return [Cells(part.data, part.keep & present[:, None], part.size * present) for part in parts]


def tobytes(parts: Parts) -> bytes:
    """Concatenate the rows."""
    data = np.concatenate([part.data for part in parts], axis=1)
    kept: bytes = data[np.concatenate([part.keep for part in parts], axis=1)].tobytes()
    return kept


def constant(value: bytes, rows: int) -> Cells:
    """The same bytes in every row."""
    data = np.broadcast_to(np.frombuffer(value, np.uint8), (rows, len(value)))
    return _whole(data)


def varint(values: npt.NDArray[Any]) -> Cells:
    """Varints; negative numbers as protobuf's int64 has them, in ten bytes."""
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    data, keep, size = [], [np.ones(len(rest), np.bool_)], np.ones(len(rest), np.int64)
    while True:
        low, rest = rest & np.uint64(0x7F), rest >> np.uint64(7)
        more = rest > 0
        data.append((low | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8))
        if not more.any():
            return Cells(np.stack(data, axis=1), np.stack(keep, axis=1), size)
        keep.append(more)
        size += more


def fixed64(values: npt.NDArray[Any]) -> Cells:
    """Eight bytes a row, of integers or floating-point numbers."""
    wide = values.astype("<f8" if values.dtype.kind == "f" else "<i8", copy=False)
    data = np.ascontiguousarray(wide).view(np.uint8).reshape(len(values), 8)
    return _whole(data)


def ragged(tag: bytes, values: npt.NDArray[Any], counts: Ints) -> Cells:
    """A repeated fixed64 field: the first `counts[0]` values are row 0's, the next `counts[1]` row 1's, and so on."""
    size = len(tag) + 8
    widest = int(counts.max(initial=0))
    keep = np.arange(widest)[None, :] < counts[:, None]
    data = np.zeros((len(counts), widest, size), np.uint8)
    data[keep, : len(tag)] = np.frombuffer(tag, np.uint8)
    data[keep, len(tag) :] = fixed64(values).data
    shape = (len(counts), widest * size)
    return Cells(data.reshape(shape), np.repeat(keep, size, axis=1).reshape(shape), counts * size)


def _whole(data: npt.NDArray[np.uint8]) -> Cells:
    """Return the bytes of all rows."""
    rows, width = data.shape
    return Cells(data, np.broadcast_to(np.True_, data.shape), np.broadcast_to(np.int64(width), (rows,)))


@cache
def tag(message: Any, name: str) -> bytes:
    """A field's tag, by the published schema."""
    field = message.DESCRIPTOR.fields_by_name[name]
    wire = {
        field.TYPE_DOUBLE: _FIXED64,
        field.TYPE_FIXED64: _FIXED64,
        field.TYPE_FIXED32: _FIXED32,
        field.TYPE_STRING: _BYTES,
        field.TYPE_BYTES: _BYTES,
        field.TYPE_MESSAGE: _BYTES,
    }.get(field.type, _VARINT)
    return encoded(field.number << 3 | wire)


def encoded(value: int) -> bytes:
    """One varint."""
    return tobytes([varint(np.array([value]))])


def field(message: Any, name: str, value: Cells) -> Parts:
    """A number field of every row."""
    return [constant(tag(message, name), len(value.data)), value]


def fixed(message: Any, name: str, value: int, rows: int) -> Parts:
    """A number field that is the same in every row.

    Args:
        message: The message's descriptor.
        name: The field's name.
        value: Its value.
        rows: Messages.
    """
    return [constant(tag(message, name) + encoded(value), rows)]


def nested(message: Any, name: str, parts: Parts) -> Parts:
    """A message field of every row, made of its fields."""
    sizes = np.sum([part.size for part in parts], axis=0)
    return [constant(tag(message, name), len(sizes)), varint(sizes), *parts]
