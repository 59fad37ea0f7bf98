"""Tile records from their files to columns. `probes/device/tiles/layout.py` says what the bytes mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvtrace.errors import DamageError, KvtraceError, Tell, refuse
from kvtrace.format.segment import LARGEST_CLOCK_NS
from kvtrace.format.tile_file import (
    CHUNK,
    CHUNK_MARK,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FROM_END,
    LISTS_BLOCKS,
    SECTION_BYTES,
    TICK_SHIFT,
    TILES_MAGIC,
    TILES_VERSION,
    Chunk,
    padded,
)

TICK_NS = 1 << TICK_SHIFT

PROGRAM = np.dtype(
    [
        ("start", "<u4"),
        ("sum", "<u4"),
        ("row", "<u2"),
        ("query_block", "<u2"),
        ("layer", "u1"),
        ("head", "u1"),
        ("first_tile", "<u2"),
        ("at", "<u4"),
        ("tiles", "<u2"),
        ("flags", "<u2"),
    ]
)
WRITE = np.dtype(
    [
        ("start", "<u4"),
        ("slot", "<u4"),
        ("token", "<u2"),
        ("layer", "u1"),
        ("part", "u1"),
        ("k_ticks", "u1"),
        ("v_ticks", "u1"),
        ("unused", "<u2"),
    ]
)
assert (PROGRAM.itemsize, 2, WRITE.itemsize) == SECTION_BYTES

Array = NDArray[Any]

_LAYERS, _WORD, _BEFORE_NS = 256, (1 << 32) - 1, 3 << 30


class StepTiles(NamedTuple):
    """Words that GPU programs wrote in a step, as they lie in the file."""

    chunk: Chunk
    programs: Array  # of PROGRAM
    ticks: Array  # uint8, [tiles, 2]: to K, then from K to V
    writes: Array  # of WRITE

    @property
    def opened_ns(self) -> int:
        """Time at which the step was opened, CLOCK_MONOTONIC."""
        return self.chunk.opened_gpu_ns + self.chunk.offset_ns

    def started_ns(self, records: Array) -> Array:
        """Tell when programs or writes of the step began, CLOCK_MONOTONIC ns.

        They have the low word of the global timer, which comes round every 4.3 s, and a step in which kernels are
        compiled takes longer. So each layer is put behind the one before it, up to 3.2 s later, and its records around
        its first one.
        """
        first, at = np.zeros(_LAYERS, np.uint32), np.zeros(_LAYERS, np.int64)
        there = np.zeros(_LAYERS, bool)
        for section in (self.writes, self.programs):
            first[section["layer"][::-1]] = section["start"][::-1]  # of a layer's records the first one stays
            there[section["layer"]] = True
        word, passed = self.chunk.opened_gpu_ns & _WORD, 0
        for number, layer in enumerate(np.flatnonzero(there)):
            gap = (int(first[layer]) - word) & _WORD
            if number and gap >= _BEFORE_NS:  # layers that take turns, in parts of a batch
                gap -= _WORD + 1
            word, passed = int(first[layer]), passed + gap
            at[layer] = passed
        layers = records["layer"]
        around = (records["start"] - first[layers]).view(np.int32)
        started: Array = at[layers] + around + self.opened_ns
        return started


class TileTimes(NamedTuple):
    """A step's tiles in the order of their programs: when each one's K and V had been used, CLOCK_MONOTONIC ns."""

    program: Array  # int64: index into the step's programs
    tile: Array  # int64: its number in its sequence
    k_start_ns: Array  # int64: when the program turned to the tile
    k_ns: Array  # int64
    v_ns: Array  # int64


def has_tiles(directory: Path) -> bool:
    """Return whether a process recorded tiles."""
    return any(directory.glob("tiles.*.kvt"))


def steps(directory: Path, tell: Tell | None = None) -> Iterator[StepTiles]:
    """The recorded steps of a process, file by file. With `tell` damaged ones are left out.

    Raises:
        KvtraceError: A file is damaged or of a newer kvtrace. A torn chunk at the end of the last one is left out.
    """
    paths = sorted(directory.glob("tiles.*.kvt"))
    for path in paths:
        for chunk, data, offset in _chunks(path, tell, is_last=path is paths[-1]):
            step = _step(chunk, data, offset)
            if wrong := _what_is_wrong(step):
                refuse(f"{path}: the step at byte {offset - CHUNK.size} is damaged: {wrong}", tell)
                continue
            yield step


def headers(directory: Path, tell: Tell | None = None) -> tuple[list[Chunk], int]:
    """The headers of a process's recorded steps, and how many torn steps follow (0 or 1).

    Raises:
        KvtraceError: As `steps`.
    """
    paths = sorted(directory.glob("tiles.*.kvt"))
    found = [[chunk for chunk, _, _ in _chunks(path, tell, is_last=path is paths[-1])] for path in paths]
    torn = 0
    if paths:
        whole = FILE_HEADER_BYTES + sum(CHUNK.size + chunk.payload_bytes for chunk in found[-1])
        torn = int(paths[-1].stat().st_size > whole)
    return [chunk for chunks in found for chunk in chunks], torn


def _chunks(path: Path, tell: Tell | None, *, is_last: bool) -> Iterator[tuple[Chunk, Array, int]]:
    """Each whole chunk of a file, with `tell` up to where it is damaged."""
    try:
        yield from _chunks_of_sound_file(path, is_last=is_last)
    except KvtraceError as error:
        if tell is None:
            raise
        tell(f"{error}; nothing from there on was read")


def _chunks_of_sound_file(path: Path, *, is_last: bool) -> Iterator[tuple[Chunk, Array, int]]:
    """Each whole chunk of a file: its header, the file's bytes, and where among them its sections begin."""
    if path.stat().st_size < FILE_HEADER_BYTES:
        if is_last:  # the process died while it made the file
            return
        raise DamageError(f"{path} is shorter than its header of {FILE_HEADER_BYTES} bytes: it was truncated")
    data: Array = np.memmap(path, np.uint8, "r")
    magic, version, _ = FILE_HEADER.unpack_from(data.data)
    if magic != TILES_MAGIC:
        raise DamageError(f"{path} is no file of tile records: it begins with {magic!r}")
    if not 1 <= version <= TILES_VERSION:
        raise KvtraceError(
            f"{path} has format {version} of tile records, this kvtrace reads those up to {TILES_VERSION}: "
            "use the kvtrace that recorded it"
        )
    offset = FILE_HEADER_BYTES
    while offset + CHUNK.size <= len(data):
        chunk = Chunk(*CHUNK.unpack_from(data.data, offset))
        if chunk.mark != CHUNK_MARK:
            raise DamageError(f"{path}: no step begins at byte {offset}: the file is damaged")
        end = offset + CHUNK.size + chunk.payload_bytes
        if end > len(data):
            break
        yield chunk, data, offset + CHUNK.size
        offset = end
    if offset < len(data) and not is_last:
        raise DamageError(f"{path}: the step at byte {offset} is cut off, and {path.name} is not the last file")


def _step(chunk: Chunk, data: Array, offset: int) -> StepTiles:
    sections = []
    for count, size in zip(chunk.counts, SECTION_BYTES, strict=True):
        sections.append(data[offset : offset + count * size])
        offset += padded(count * size)
    programs, ticks, writes = sections
    return StepTiles(chunk, programs.view(PROGRAM), ticks.reshape(-1, 2), writes.view(WRITE))


def _what_is_wrong(step: StepTiles) -> str | None:
    """Mark what cannot be in a step: numbers that are too large, and places beyond its own tiles."""
    chunk, programs, places = step.chunk, step.programs, len(step.ticks)
    if not 0 <= chunk.step < 1 << 31 or max(chunk.lost_steps, chunk.filtered_steps) >= 1 << 31:
        return f"it has number {chunk.step}, after {chunk.lost_steps} lost and {chunk.filtered_steps} left out"
    if max(abs(chunk.opened_gpu_ns), abs(chunk.offset_ns)) >= LARGEST_CLOCK_NS // 2:
        return f"its clock reads {chunk.opened_gpu_ns} ns, {chunk.offset_ns} ns off"
    tiles = programs["tiles"].astype(np.int64)
    at = (programs["at"] - np.uint32(chunk.tile_origin)).astype(np.int64)
    ids = np.where(programs["flags"] & LISTS_BLOCKS, 2 * tiles * _blocks_a_tile(programs) + (tiles & 1), 0)
    beyond = np.flatnonzero((tiles == 0) | (at + tiles + ids > places))
    if len(beyond):
        first = beyond[0]
        return f"program {first} has {tiles[first]} tiles from place {at[first]} on, of {places} places"
    return f"programs have {tiles.sum()} tiles, of {places} places" if tiles.sum() > places else None


def times(step: StepTiles) -> TileTimes:
    """Return when each tile of a step had its K and V used."""
    programs = step.programs
    counts = programs["tiles"].astype(np.int64)
    begins = np.cumsum(counts) - counts
    number = np.arange(counts.sum())
    at = (programs["at"] - np.uint32(step.chunk.tile_origin)).astype(np.int64)
    ticks = step.ticks.reshape(-1).view("<u2")[number + np.repeat(at - begins, counts)]
    start = step.started_ns(programs)

    def since_start(ticks: Array) -> Array:
        """Times from the ticks between each and the one before it in its program."""
        ns: Array = ticks.astype(np.int64) << TICK_SHIFT
        first = ns[begins]
        np.cumsum(ns, out=ns)  # over all programs: what is of those before is taken off
        ns += np.repeat(start + first - ns[begins], counts)
        return ns

    k_ns = since_start(ticks & 0xFF)
    v_ns = k_ns + ((ticks >> 8).astype(np.int64) << TICK_SHIFT)
    before = v_ns
    program = np.repeat(np.arange(len(programs)), counts)
    inside = number - begins[program]
    if len(from_end := np.flatnonzero((programs["flags"] & FROM_END) != 0)):
        reverse = np.isin(program, from_end)
        v_ns = np.where(reverse, np.maximum(since_start(ticks >> 8), k_ns), v_ns)
        before = np.where(reverse, k_ns, v_ns)  # the next tile's K is multiplied before this one's V
        inside = np.where(reverse, counts[program] - 1 - inside, inside)
    k_start = np.empty_like(k_ns)
    k_start[1:] = before[:-1]
    k_start[begins] = start
    # Blocks that a program used together have one time. Each but the first has no ticks: it began with the one before.
    # So would a tile whose K came within a tick of the V before it. Products of a tile take many.
    own = ((ticks & 0xFF) != 0) | (np.repeat(begins, counts) == number)
    together = np.maximum.accumulate(np.where(own, number, 0))
    k_start = np.where((programs["flags"] & FROM_END)[program] == 0, k_start[together], k_start)
    return TileTimes(program, programs["first_tile"][program] + inside, k_start, k_ns, v_ns)


def tile_tokens(programs: Array) -> Array:
    """Tokens of a tile, by program."""
    size = (programs["flags"] >> 2 & 15).astype(np.int64)
    tokens: Array = np.where(programs["flags"] & FROM_END, 16 * size, 16 << size)
    return tokens


def block_tokens(programs: Array) -> Array:
    """Tokens of a block as the kernel knows it, by program."""
    return 16 * (programs["flags"] >> 6 & 511).astype(np.int64)


def _blocks_a_tile(programs: Array) -> Array:
    counts: Array = np.maximum(1, tile_tokens(programs) // np.maximum(16, block_tokens(programs)))
    return counts


class BlockIds(NamedTuple):
    """Block ids as programs listed them; entries beyond their sequence are left out."""

    program: Array  # int64: index into the step's programs
    block_index: Array  # int64: the block's index in its sequence (the tile's, where tiles are smaller than blocks)
    block_id: Array  # int32


def block_ids(step: StepTiles) -> BlockIds:
    """The block ids that programs of the first layer and head of a KV cache group listed."""
    programs = step.programs
    lists = np.flatnonzero(programs["flags"] & LISTS_BLOCKS)
    tiles = programs["tiles"][lists].astype(np.int64)
    blocks_a_tile = _blocks_a_tile(programs[lists])
    counts = tiles * blocks_a_tile
    begins = np.cumsum(counts) - counts
    program = np.repeat(np.arange(len(lists)), counts)
    inside = np.arange(len(program)) - begins[program]
    at = (programs["at"][lists] - np.uint32(step.chunk.tile_origin)).astype(np.int64)
    # Tiles are two bytes each and end at an even place; behind them ids take two places each.
    places = (at + (tiles + 1 & ~1))[program] + 2 * inside
    flat = step.ticks.astype(np.uint32)
    words = flat[:, 0] | flat[:, 1] << 8
    ids = (words[places] | words[places + 1] << 16).view("<i4")
    index = programs["first_tile"][lists].astype(np.int64)[program] * blocks_a_tile[program] + inside
    kept = ids >= 0
    return BlockIds(lists[program][kept], index[kept], ids[kept])


def from_sections(sections: list[bytes], tile_origin: int) -> StepTiles:
    """A step from its sections' bytes, opened at time 0; for tests."""
    counts = [len(section) // size for section, size in zip(sections, SECTION_BYTES, strict=True)]
    data = b"".join(section.ljust(padded(len(section)), b"\0") for section in sections)
    chunk = Chunk(CHUNK_MARK, 0, 0, 0, 0, tile_origin, counts[0], counts[1], counts[2], 0, 0)
    return _step(chunk, np.frombuffer(data, np.uint8), 0)
