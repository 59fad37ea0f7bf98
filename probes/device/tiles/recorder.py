"""The calls that rewriting adds to kernels, as Triton functions. `layout` says what they write.

What the times mean. Loads are pipelined: a tile's K and V are on their way while earlier tiles are computed. So a tile
is timed where the program needs it. Its K time is read when its scores are there, for which the whole tile's K has been
waited for. Its V time is read at the top of the loop's next turn, or behind the last one: the instructions
that multiply V have been issued by then, in order, so their operands are there. (Waiting for their results would cost
a tenth of a microsecond a tile, and two percent of a decode at the end.)

A compiler moves nothing across a read of the timer, so where K's stands decides what attention costs: in front of the
softmax it is least. Ticks are computed, and stored, at the top of the next turn, in front of a wait for bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.clock import (
    kvt_behind,
    kvt_bits,
    kvt_enter,
    kvt_leave,
    kvt_load,
    kvt_mark,
    kvt_now,
    kvt_put,
    kvt_record,
    kvt_reserve,
)

_PAIR_CURSOR = tl.constexpr(layout.CURSOR_WORDS[layout.PROGRAMS])
_WRITE_CURSOR = tl.constexpr(layout.CURSOR_WORDS[layout.WRITES])
_ADDRESS = tl.constexpr(layout.ADDRESS_WORD)
_ROOM = tl.constexpr(layout.ROOM_WORD)
_TILES = tl.constexpr(layout.TILES)
_A_PROGRAM = tl.constexpr(1 << layout.TILE_BITS)
_TILE_MASK = tl.constexpr(layout.TILE_MASK)
_LISTS = tl.constexpr(1)
_TICK_NS = tl.constexpr(1 << layout.TICK_SHIFT)
_LARGEST = tl.constexpr((1 << 31) - 1)
_WINDOW_WORDS = tl.constexpr(layout.WINDOW_WORDS)
_FIRST = tl.constexpr(layout.FIRST)
_LAST = tl.constexpr(layout.LAST)


@triton.jit
def kvt_window_first(windows, what, WINDOW: tl.constexpr, wanted):
    """Take part in a layer's window: a program begins to access the cache."""
    kvt_enter(windows + (what & 0xFF) * _WINDOW_WORDS + (WINDOW + _FIRST), wanted)


@triton.jit
def kvt_window_last(windows, what, WINDOW: tl.constexpr, wanted):
    """Take part in a layer's window: a program's accesses have been issued, and what they waited for is there."""
    kvt_leave(windows + (what & 0xFF) * _WINDOW_WORDS + (WINDOW + _LAST), wanted)


@triton.jit
def kvt_room(control, SECTION: tl.constexpr):
    """A section's room in this step, and the address of its first place."""
    return kvt_load(control + _ROOM + SECTION), kvt_load(control + _ADDRESS + SECTION)


@triton.jit
def kvt_begin(
    control, room, first_tile, what, heads, head, low, high, TILE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Reserve a program's record and its tiles; nothing in a step that is not recorded, which has no room.

    Returns the pair of places, the end of the places where its tiles would find room (0: they are not recorded), the
    address of place 0 less that of the first tile, and the start. Nothing here waits for the atomic, unless the program
    lists blocks: only then do all its threads learn of the place.
    """
    a_tile: tl.constexpr = TILE_SIZE // BLOCK_SIZE if TILE_SIZE > BLOCK_SIZE else 1
    tiles = high - low
    lists = (what >> 16) == head + _LISTS
    slots = (((tiles + 1) & -2) + tl.where(lists, tiles * (2 * a_tile), 0)).to(tl.int64)
    wanted = (((heads >> head) & 1) != 0) & (tiles > 0) & (room > 0)
    if lists:
        pair = tl.atomic_add(control + _PAIR_CURSOR, slots + _A_PROGRAM, mask=wanted, sem="relaxed")
    else:
        pair = kvt_reserve(control + _PAIR_CURSOR, slots + _A_PROGRAM, wanted)
    end = tl.where(wanted, tl.minimum(tl.maximum(room - slots + 1, 0), _LARGEST), 0).to(tl.int32)
    return pair, end, first_tile - low.to(tl.int64) * 2, kvt_now()


@triton.jit
def kvt_key(last, ticks):
    """The time of K, `ticks` after `last`."""
    return last + ticks * _TICK_NS


@triton.jit
def kvt_key_now(needs_key):
    """The time of K: now that something is there that all of the tile's K was needed for."""
    kvt_behind(kvt_bits(needs_key))
    return kvt_now()


@triton.jit
def kvt_value(last, key, pair, end, address, tile, low):
    """Record a tile, if there is one: its K was there at `key`, that before at `last`, and its V has been used now."""
    return kvt_mark(last, key, pair, tl.where(tile >= low, end, 0), address + tile * 2)


@triton.jit
def kvt_see(
    total, block, inside, index, low, high, what, head, pair, end, address,
    TILE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Take up physical blocks by their index in the sequence; list them behind the tiles if this program does that."""
    a_tile: tl.constexpr = TILE_SIZE // BLOCK_SIZE if TILE_SIZE > BLOCK_SIZE else 1
    block = block.to(tl.int32)
    place = pair & _TILE_MASK
    lists = ((what >> 16) == head + _LISTS) & (place < end)
    ids = address + (place + low + ((high - low + 1) & -2)) * 2
    pointer = ids.to(tl.pointer_type(tl.int32)) + (index - low * a_tile)
    tl.store(pointer, tl.where(inside, block, -1), mask=index < tl.where(lists, high * a_tile, 0))
    return total + tl.where(inside, block * (2 * index + 1), 0)


@triton.jit
def kvt_end(
    programs, first_program, pair, start, end, address, total, row, query_block, what, head, low, high,
    TILE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Write a program's record."""
    tile_code: tl.constexpr = (
        (TILE_SIZE > 16) + (TILE_SIZE > 32) + (TILE_SIZE > 64) + (TILE_SIZE > 128) + (TILE_SIZE > 256)
    )
    sizes: tl.constexpr = (tile_code << 2) | (BLOCK_SIZE // 16 << 6)
    who = (row.to(tl.int32) & 0xFFFF) | ((query_block.to(tl.int32) & 0xFFFF) << 16)
    of = (what & 0xFF) | (head.to(tl.int32) << 8) | ((low.to(tl.int32) & 0xFFFF) << 16)
    place_0 = (address >> 1).to(tl.int32) + low.to(tl.int32)
    sums = ((what >> 8) & 0xFF) == head + 1
    flags = tl.where((what >> 16) == head + _LISTS, 3, tl.where(sums, 1, 0))
    more = ((high - low).to(tl.int32) & 0xFFFF) | ((flags | sizes) << 16)
    kvt_record(pair, end, programs, first_program, start, total, who, of, place_0, more)


@triton.jit
def kvt_write(control, room):
    """Reserve the record of a cache-write program, in a step that is recorded: its place and its start."""
    return kvt_reserve(control + _WRITE_CURSOR, tl.full([], 1, tl.int64), room > 0), kvt_now()


@triton.jit
def kvt_wrote(room, first, what, slot, place, start, to_key, to_value):
    """Write the record: K was about to be stored `to_key` ticks after `start`, and V `to_value` ticks after that."""
    fixed = (tl.program_id(0) & 0xFFFF) | ((what & 0xFF) << 16) | ((tl.program_id(1) & 0xFF) << 24)
    kvt_put(to_key, to_value, start, slot.to(tl.int32), fixed, first + place * 16, (room > 0) & (place < room))
