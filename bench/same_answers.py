"""Comparison of two engines' answers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CLOSE = 1e-9
"""Largest relative difference of two fractions that count as equal: engines add up in different orders."""

CLOSE_TO_SCALE = 1e-12
"""The same as a share of the column's largest fraction: where two numbers of nearly one size are subtracted, what their
last digits differ in is left, and is as large as ever. In milliseconds it is a nanosecond in 1,000 seconds."""


def difference(wanted: pa.Table, found: pa.Table) -> str | None:
    """The first difference between two answers, in words; None if they are the same, row by row."""
    if wanted.column_names != found.column_names:
        return f"columns {found.column_names}, not {wanted.column_names}"
    if len(wanted) != len(found):
        return f"{len(found):,} rows, not {len(wanted):,}"
    for name in wanted.column_names:
        left, right = _plain(wanted[name]), _plain(found[name])
        if not _same_types(left.type, right.type):
            return f"{name} is {right.type}, not {left.type}"
        rows = np.flatnonzero(~_equal(left, right))
        if len(rows):
            row = int(rows[0])
            return f"{name}: {len(rows):,} rows differ; row {row}: {right[row].as_py()!r}, not {left[row].as_py()!r}"
    return None


def _plain(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _same_types(left: pa.DataType, right: pa.DataType) -> bool:
    return left == right or (_is_text(left) and _is_text(right))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _equal(left: pa.Array, right: pa.Array) -> np.ndarray:
    nulls_alike = pc.equal(left.is_null(), right.is_null()).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(left.type):
        a, b = (column.fill_null(0.0).to_numpy(zero_copy_only=False) for column in (left, right))
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(a) & np.isfinite(b)
            size = np.where(finite, np.maximum(np.abs(a), np.abs(b)), 0.0)
            scale = np.max(np.abs(a), initial=0.0, where=np.isfinite(a))
            close = finite & (np.abs(a - b) <= np.maximum(CLOSE * size, CLOSE_TO_SCALE * scale))
        same = close | (a == b) | (np.isnan(a) & np.isnan(b))
        return np.asarray(nulls_alike & same)
    if pa.types.is_nested(left.type):
        return np.array([a == b for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)], dtype=bool)
    right = right.cast(left.type)
    same = pc.fill_null(pc.equal(left, right), fill_value=True).to_numpy(zero_copy_only=False)
    return np.asarray(nulls_alike & same)
