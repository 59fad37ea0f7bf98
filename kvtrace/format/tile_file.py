"""The file format of tile records: what GPU programs wrote, a chunk a step.

RUN/processes/.../tiles.NNNNN.kvt: a header, then chunks. A chunk is a header and the step's records, section by section
in the order of `SECTION_BYTES`, each padded to 8 bytes. `probes/device/tiles/layout.py` says what the records hold.
Chunks are appended whole; a shorter one at the end of the last file is torn and counts as a lost step.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

TILES_MAGIC = b"KVTILES\n"
TILES_VERSION = 2
FILE_HEADER = struct.Struct("<8sII")
"""Magic, version, length of the JSON that follows (`pid`, `sequence`, `tick_ns`, `tile_tokens`)."""
FILE_HEADER_BYTES = 4096

CHUNK_MARK = 0x5354564B  # "KVTS"
CHUNK = struct.Struct("<IiqqqIIIIII")
SECTION_BYTES = (24, 2, 16)
"""Bytes of a program record, a tile and a write record."""

TICK_SHIFT = 5
"""A tick is 32 ns: the step of an H200's global timer. At most 255 fit; what is longer is caught up by later ones."""

HAS_SUM, LISTS_BLOCKS, FROM_END = 1, 2, 1 << 15
"""Flags of a program record: `sum` is there; block ids follow the tiles; the program goes from its last tile to its
first, and times of V count from the V before. Bits 2 to 5 hold the tile's size (0: 16 tokens, 1: 32, ...; a sixteenth
of it with `FROM_END`), bits 6 to 14 a sixteenth of the block's."""

FILE_BYTES = 1 << 30
"""A file is closed after the chunk that brings it to this size."""


class Chunk(NamedTuple):
    """A step's records: the chunk header's fields."""

    mark: int
    engine_pid: int
    step: int
    opened_gpu_ns: int  # the global timer when the step was opened
    offset_ns: int  # CLOCK_MONOTONIC minus global timer
    tile_origin: int  # position of the first tile, modulo 2**32, as programs count them
    programs: int
    tiles: int  # places: with the block ids behind some programs' tiles
    writes: int
    lost_steps: int  # dropped since the chunk before, for want of room
    filtered_steps: int  # left out since the chunk before, because the filters say so

    @property
    def counts(self) -> tuple[int, int, int]:
        """Records by section."""
        return self.programs, self.tiles, self.writes

    @property
    def payload_bytes(self) -> int:
        """Bytes that follow the header."""
        return sum(padded(count * size) for count, size in zip(self.counts, SECTION_BYTES, strict=True))


def padded(size: int) -> int:
    """A section's bytes with its padding."""
    return (size + 7) & ~7


def file_name(sequence: int) -> str:
    """Name of a process's `sequence`-th tile file (from 0)."""
    return f"tiles.{sequence:05d}.kvt"
