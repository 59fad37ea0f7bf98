"""Read and write patterns as they lie in UnBoxKV-IO's files: a JSON object a line, of one layer in one step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvtrace.ingest.append import nanoseconds, whole
from kvtrace.ingest.importers.lines import LeftOut, read_lines

EXPECTED = "expected a read or write pattern of UnBoxKV-IO: a JSON object a line"
LARGEST_STEP = 10_000_000
_ELEMENT_BYTES = (2, 1, 4)
_K_GROUP_BYTES = 16
"""K of a token is cut into pieces of this size, and pieces of a block's tokens lie side by side."""

Array = NDArray[np.int64]


class Reads(NamedTuple):
    """The lists of K or V reads: [requests, entries, (start, duration, block)] in ticks; -1 where unused."""

    k: Array
    v: Array
    warps: int
    entries_a_warp: int


class Pattern(NamedTuple):
    """Accesses of one layer in one step. A line has either writes or reads."""

    layer: int
    step: int
    start_ns: int  # UNIX, by the host, when the layer was called
    tokens_of: tuple[int, ...]  # as the file says: of each prompt, or 1 a decoding request
    cache_bytes: int | None  # of the layer's K (or V) cache
    writes: Array | None  # [tokens, 5]: first and last byte of K, of V, and ticks
    reads: Reads | None


class Layout(NamedTuple):
    """Layout of K and V in a layer's cache."""

    block_bytes: int
    block_tokens: int
    blocks: int | None

    def blocks_of(self, writes: Array) -> Array:
        """The block of each token written."""
        found: Array = writes[:, 0] // self.block_bytes
        return found

    def places_of(self, writes: Array) -> Array:
        """The place of each token in its block."""
        found: Array = writes[:, 0] % self.block_bytes // _K_GROUP_BYTES
        return found


def read_patterns(path: Path, warnings: list[str]) -> Iterator[tuple[int, Pattern]]:
    """The patterns of a file with their line numbers. Lines that are none are left out and warned of.

    Raises:
        KvtraceError: The file cannot be read, or no line is a pattern.
    """
    left_out, read = LeftOut(path, "no patterns"), 0
    for line in read_lines(path, EXPECTED, warnings):
        try:
            found = _pattern(json.loads(line.text))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            if read and not line.whole and isinstance(error, json.JSONDecodeError):
                warnings.append(f"{path.name}: the last line, {line.number}, is cut off and was left out")
                break
            left_out.add(line, error)
            continue
        read += 1
        yield line.number, found
    if left_out.count and not read:
        raise left_out.refusal(EXPECTED)
    warnings += left_out.warnings()


def _pattern(fields: Any) -> Pattern:
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    writes, reads = fields.get("kv_write_pattern_record"), fields.get("k_read_pattern_record")
    if writes is None and reads is None:
        raise ValueError("neither kv_write_pattern_record nor k_read_pattern_record is in it")
    tokens_of = fields.get("seq_lens")
    if not isinstance(tokens_of, list):
        raise TypeError(f"seq_lens is no list but {tokens_of!r:.40}")
    size = fields.get("kv_cache_range")
    return Pattern(
        layer=_integer(fields, "layer_id", 1 << 20),
        step=_integer(fields, "step", LARGEST_STEP),
        start_ns=_start(fields.get("start_time")),
        tokens_of=tuple(_count(value) for value in tokens_of),
        cache_bytes=None if size is None else _integer(fields, "kv_cache_range", 1 << 50),
        writes=None if writes is None else _written(writes),
        reads=None if reads is None else _reads(fields, reads),
    )


def _integer(fields: dict[str, Any], name: str, limit: int) -> int:
    found = whole(fields.get(name), 62)
    if found is None or not 0 <= found < limit:
        raise ValueError(f"{name} is {fields.get(name)!r:.40}, no whole number from 0 to {limit - 1}")
    return found


def _count(value: object) -> int:
    found = whole(value)
    if found is None or found < 0:
        raise ValueError(f"seq_lens has {value!r:.40}, no number of tokens")
    return found


def _start(value: object) -> int:
    found = nanoseconds(value, 1e9)
    if found is None or found < 0:
        raise ValueError(f"start_time is {value!r:.40}, no UNIX time in seconds")
    return found


def _written(rows: object) -> Array:
    found = _numbers(rows, "kv_write_pattern_record")
    if not found.size:
        return np.zeros((0, 5), np.int64)
    if found.ndim != 2 or found.shape[1] < 5 or (found[:, :5] < 0).any():
        raise ValueError("kv_write_pattern_record has a row that is not [k_start, k_end, v_start, v_end, duration]")
    return found[:, :5]


def _reads(fields: dict[str, Any], k_rows: object) -> Reads:
    stride = _integer(fields, "block_acc_stride", 1 << 20)
    k = _triples(k_rows, "k_read_pattern_record")
    v_rows = fields.get("v_read_pattern_record")
    v = np.zeros((len(k), 0, 3), np.int64) if v_rows is None else _triples(v_rows, "v_read_pattern_record")
    if len(v) != len(k):
        raise ValueError(f"{len(k)} lists of K reads, but {len(v)} of V reads")
    if stride == 0 or k.shape[1] % stride:
        raise ValueError(f"lists of {k.shape[1]} reads are no whole number of warps of block_acc_stride {stride}")
    return Reads(k, v, max(1, k.shape[1] // stride), stride)


def _triples(rows: object, name: str) -> Array:
    found = _numbers(rows, name)
    if not found.size:
        return np.zeros((0, 0, 3), np.int64)
    if found.ndim != 2 or found.shape[1] % 3:
        raise ValueError(f"{name} is not a list a request of triples (start, duration, block)")
    triples: Array = found.reshape(len(found), -1, 3)
    used = triples[:, :, 2] >= 0
    if (triples[used] < 0).any() or (triples[used] >= 1 << 40).any() or (triples[used][:, 2] >= 1 << 31).any():
        raise ValueError(f"{name} has a read with a start, duration or block that cannot be")
    return triples


def _numbers(rows: object, name: str) -> Array:
    if not isinstance(rows, list):
        raise TypeError(f"{name} is no list")
    found = np.asarray(rows if rows else [], None if rows else np.int64)
    if found.dtype.kind not in "iu" or found.dtype.itemsize > 8:
        raise ValueError(f"{name} holds something else than equally long lists of whole numbers")
    numbers: Array = found.astype(np.int64)
    return numbers


def find_layout(pattern: Pattern, block_bytes: int | None, block_tokens: int | None) -> Layout | None:
    """Return the layout of K and V, by the bytes a write covers; None if nothing fits.

    A token's K begins at 16 bytes times its place in the block and its V at one element times its place, so the spans
    of K and V leave one block size for each size of an element; the cache holds whole blocks.
    """
    writes, cache = pattern.writes, pattern.cache_bytes
    if writes is None or not len(writes):
        return None
    k_span, v_span = writes[:, 1] - writes[:, 0], writes[:, 3] - writes[:, 2]
    if (k_span != k_span[0]).any() or (v_span != v_span[0]).any():
        return None
    for element in _ELEMENT_BYTES:
        tokens, rest = divmod(int(v_span[0] - k_span[0]), _K_GROUP_BYTES - element)
        tokens += 1
        size = int(v_span[0]) + tokens * element
        if rest or tokens < 1 or (block_bytes or size) != size or (block_tokens or tokens) != tokens:
            continue
        k_place, v_place = writes[:, 0] % size / _K_GROUP_BYTES, writes[:, 2] % size / element
        same_block = (writes[:, 0] // size == writes[:, 2] // size).all()
        if same_block and (k_place == v_place).all() and (k_place < tokens).all() and (cache or 0) % size == 0:
            return Layout(size, tokens, cache // size if cache else None)
    return None
