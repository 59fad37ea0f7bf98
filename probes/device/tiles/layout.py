"""The words that rewritten kernels write: shared by the Triton code, the CUDA code, the drain and the reader.

A program is one Triton program, or thread block, of an attention kernel: one row of the batch, a few of its queries,
one KV head, one layer. It writes

- a record of 24 bytes, little endian: start (u32, low word of the global timer in ns), sum (u32), row (u16), query
  block (u16), layer (u8), head (u8), first tile (u16), position of its tiles (u32, low word), tiles (u16), flags (u16);
- two bytes a tile: ticks of 32 ns from the K before it (or the start) to this K, and from this K to its V (with
  `FROM_END` from the V before it, or the start; and the first pair is the last tile's);
- in the first layer and head of a KV cache group, behind its tiles (at an even position), the id (i32) of each block of
  each tile; -1 beyond the sequence.

`sum`, kept by the first head of every layer, is that of `block id x (2 x index + 1)` over the blocks it reads, modulo
2**32, index counting blocks from the sequence's start. The reader compares it with the ids listed by the first layer.

A write record of 16 bytes is one program of a cache-write kernel: start (u32), slot (u32), token (u16), layer (u8),
part (u8), ticks from the start to the store of K (u8) and from there to the store of V (u8), two unused bytes.

Windows are apart from the ring and need no step to be opened: `WINDOW_WORDS` words of 64 bits a layer. Every program
takes part with two atomics of which nobody waits for the result: at its start it raises the complement of the earliest
time to its own, at its end the latest one. A prefill has ten thousands of programs, and atomics on one address take
turns. So a layer may have several lines of memory, chosen by the SM, and whoever reads takes the largest. Words are 0
where no program ran.
"""

from __future__ import annotations

from typing import NamedTuple

from kvtrace.format.tile_file import SECTION_BYTES, TICK_SHIFT

__all__ = ["SECTIONS", "TICK_SHIFT", "Section"]


class Section(NamedTuple):
    """A part of the ring for one kind of record."""

    name: str
    record_bytes: int
    share: float  # of the ring's bytes


SECTIONS = (
    Section("programs", SECTION_BYTES[0], 0.40),
    Section("tiles", SECTION_BYTES[1], 0.45),
    Section("writes", SECTION_BYTES[2], 0.15),
)
PROGRAMS, TILES, WRITES = range(len(SECTIONS))

# Control words, 64 bits each. The cursors are added to by every program, so each has a cache line of its own; programs
# and tiles share one atomic: programs in the upper 24 bits, tiles in the lower 40.
CURSOR_WORDS = (0, 0, 16)
TILE_BITS = 40
TILE_MASK = (1 << TILE_BITS) - 1
ADDRESS_WORD, ROOM_WORD, HEAD_WORD, CAPACITY_WORD, BASE_WORD = 48, 52, 56, 60, 64  # + section
ENABLED_WORD, PUBLISHED_WORD, OPENED_WORD, LOST_WORD = 68, 69, 70, 71
CONTROL_WORDS = 80

# The programs' times of a layer: of its cache write, then of its attention.
WINDOW_WAYS, WAY_WORDS = 16, 16
"""Lines of memory a layer, a power of two, and words of a line."""
WINDOW_WORDS = WINDOW_WAYS * WAY_WORDS
WRITE_WINDOW, ATTENTION_WINDOW = 0, 2
FIRST, LAST = 0, 1
"""The complement of the first program's start; the last one's end."""

# A step's description in pinned memory, 64 bits each; `kvtrace/capture/native/tile_drain.c` reads it.
STEP_WORD, TIME_WORD, STATE_WORD, LOST_BEFORE_WORD, FILTERED_BEFORE_WORD = 0, 1, 2, 3, 7
START_WORD, COUNT_WORD = 4, 8  # + section
STEP_WORDS = 12
RECORDED, OVERFLOWED = 1, 2
"""States of a step: its records are in the ring; it did not fit and is dropped whole."""
