"""Protobuf messages of many rows at once: each field is a matrix of bytes with a mask, and a message is their rows joined.

Python's protobuf makes one object a message, which takes 10 to 20 us an event; here numpy does a batch in one go. Field
numbers and types come from the published schema, so no number is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from google.protobuf.message import Message

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Cells:
    """Bytes of n rows: `data[row]` where `keep[row]`. Both are n x width."""

    data: npt.NDArray[np.uint8]
    keep: Flags

    def where(self, present: Flags) -> Cells:
        """Only in the rows that are present."""
        return Cells(self.data, self.keep & present[:, None])

    def tobytes(self) -> bytes:
        """All rows, one after the other."""
        return self.data[self.keep].tobytes()


def join(parts: list[Cells]) -> Cells:
    """The parts side by side."""
    return Cells(
        np.concatenate([part.data for part in parts], axis=1), np.concatenate([part.keep for part in parts], axis=1)
    )


def constant(value: bytes, rows: int) -> Cells:
    """The same bytes in every row."""
    data = np.broadcast_to(np.frombuffer(value, np.uint8), (rows, len(value)))
    return Cells(data, np.broadcast_to(np.True_, data.shape))


def varint(values: npt.NDArray[Any]) -> Cells:
    """Varints; negative numbers as protobuf's int64 has them, in ten bytes."""
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    data, keep = [], [np.ones(len(rest), np.bool_)]
    while True:
        low, rest = rest & np.uint64(0x7F), rest >> np.uint64(7)
        more = rest > 0
        data.append((low | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8))
        if not more.any():
            return Cells(np.stack(data, axis=1), np.stack(keep, axis=1))
        keep.append(more)


def fixed64(values: npt.NDArray[Any]) -> Cells:
    """Eight bytes a row, of integers or floating-point numbers."""
    wide = values.astype("<f8" if values.dtype.kind == "f" else "<i8", copy=False)
    data = np.ascontiguousarray(wide).view(np.uint8).reshape(len(values), 8)
    return Cells(data, np.broadcast_to(np.True_, data.shape))


def ragged(tag: bytes, values: npt.NDArray[Any], counts: Ints) -> Cells:
    """A repeated fixed64 field: the first `counts[0]` values are row 0's, the next `counts[1]` row 1's, and so on."""
    size = len(tag) + 8
    widest = int(counts.max(initial=0))
    keep = np.arange(widest)[None, :] < counts[:, None]
    data = np.zeros((len(counts), widest, size), np.uint8)
    data[keep] = join([constant(tag, len(values)), fixed64(values)]).data
    shape = (len(counts), widest * size)
    return Cells(data.reshape(shape), np.repeat(keep, size, axis=1).reshape(shape))


@cache
def tag(message: type[Message], name: str) -> bytes:
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
    return varint(np.array([field.number << 3 | wire])).tobytes()


def field(message: type[Message], name: str, value: Cells) -> Cells:
    """A number field of every row."""
    return join([constant(tag(message, name), len(value.data)), value])


def nested(message: type[Message], name: str, parts: list[Cells]) -> Cells:
    """A message field of every row, made of its fields."""
    inner = join(parts)
    sizes = varint(inner.keep.sum(axis=1))
    return join([constant(tag(message, name), len(inner.data)), sizes, inner])
