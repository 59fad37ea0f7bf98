"""Functions that the rewritten headers call, in CUDA C++. `tiles/layout.py` says what is written.

What the times mean in `fa3`. Warps are specialised: producers copy tiles into shared memory, ahead of the consumers
that multiply them. The first thread of the consumers stamps. A tile's K time is when the product with its K is
complete, and its V time when that with its V is: then its shared memory is given back to the producers. When a copy was
issued is not recorded. A program goes from its last tile to its first, and multiplies the next tile's K before a tile's
V. So both times count from those of the tile before (`FROM_END`).

In `fa2`, the same warps load and multiply. A program goes from the first tile of its part of the sequence to the last.
Its first thread stamps when no warp needs a tile's memory any more, and the copies of the next tile have been issued.
Parts begin at a block, not at a multiple of a tile. So a tile of several blocks is recorded as these, with the same
times.

A compiled library outlives the process and serves others, so no address is a constant of its code: each of its sources
has constant memory for the facts (`FACTS`), which is filled before the first launch. A kernel is not told its layer: it
looks up the address of the layer's K in a table whose hash has no collisions.

A decode's program takes some twenty microseconds, and a load from memory one, while others load. So `fa2` waits for as
little as it can: in front of its first copies it asks for all that it needs to know, between K's and V's it claims its
places, and behind them it writes its record, while the first tile is on its way. The ids that it sums up it asks for
last, when copying its tiles has read them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from kvtrace.format import tile_file
from kvtrace.probes.device.tiles import layout

FACTS = ("control", "windows", "heads", "layers", "factor", "shift", "pages_before", "rows_before")
"""Words that kernels read: addresses of the ring's control words and of the windows (0: none), the heads to record as
bits, and the table of layers with its hash. Kernels have these from constant memory. In the words' own place the first
two become 0 when nothing is to be written any more, and the last two are a step's.

vLLM has decodes and prefills of a batch read by two kernels, whose pages lie in one list, and each counts its rows from
0. The first `pages_before` are the decodes', so a row whose pages begin there or behind has `rows_before` more before
it."""

SYMBOL = "kvt_facts"
"""The function of a compiled library that takes the facts' address."""


def table(layers: Mapping[int, int]) -> tuple[list[int], int, int]:
    """Lay out a table of layers for kernels to look up.

    Args:
        layers: What a layer's kernels are told, by the address of its K.

    Returns:
        The table, two words an entry (address, what); the hash's factor; and its shift.

    Raises:
        ValueError: Layers share an address, or there are none.
    """
    if not layers:
        raise ValueError("there is no layer to record")
    bits = max(1, (4 * len(layers) - 1).bit_length())
    numbers = random.Random(0)
    while True:
        for _ in range(1000):
            factor, shift = numbers.getrandbits(64) | 1, 64 - bits
            slots = {(key * factor & (1 << 64) - 1) >> shift: key for key in layers}
            if len(slots) == len(layers):
                words = [0] * (2 << bits)
                for slot, key in slots.items():
                    words[2 * slot : 2 * slot + 2] = key, layers[key]
                return words, factor, shift
        bits += 1


_NAMES = {
    **{
        name: getattr(layout, name) for name in dir(layout) if name.isupper() and isinstance(getattr(layout, name), int)
    },
    "CURSOR_WORD": layout.CURSOR_WORDS[layout.PROGRAMS],
    **{name: getattr(tile_file, name) for name in ("HAS_SUM", "LISTS_BLOCKS", "FROM_END", "TICK_SHIFT")},
    **{f"FACT_{name.upper()}": number for number, name in enumerate(FACTS)},
}

HEADER = (
    "// Written by kvtrace: what the rewritten headers beside it call.\n#pragma once\n"
    "#include <cstddef>\n#include <type_traits>\n#include <utility>\n\nnamespace kvt {\n\n"
    "typedef unsigned int u32;\ntypedef unsigned long long u64;\n\n"
    + "".join(f"constexpr u64 {name} = {value}ull;\n" for name, value in sorted(_NAMES.items()))
    + r"""
// What a consumer keeps in registers: an address, the counts of K and V in half a word each, and their last times.
struct Program {
  u64 address;  // 0: this thread does not write
  u32 counts, times[2];
};

// Where a program's tiles and its record are, in the first thread; 0: it has no place, or is not to be recorded.
struct Reserved {
  u64 tiles, record;
};

// What a program that goes forward keeps: its window (0: none), the places of its next tile and its record, what its
// layer is told, the last time of K, the ticks to it, its first block, their number, how many are left, and how many a
// tile has.
struct Forward {
  u64 window;
  Reserved reserved;
  u32 told, time, ticks, low, units, left, blocks;
};

// Where the facts are, and what they were before the first launch. What a program looks at is in one line of a cache.
struct alignas(64) Facts {
  u64 address, words[FACT_ROWS_BEFORE + 1];
};

}  // namespace kvt

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define KVT_INLINE __device__ __forceinline__

namespace kvt {

inline u64 host_facts = 0;          // one in a library
static __constant__ Facts facts;    // one in each of its sources

// Before a launch: tells the device the facts, unless a graph is being captured.
static inline void prepare(cudaStream_t stream) {
  static u64 told = 0;
  cudaStreamCaptureStatus status;
  if (told == host_facts) return;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) return;
  constexpr size_t words = offsetof(Facts, words);
  if (cudaMemcpyToSymbolAsync(facts, reinterpret_cast<const void*>(host_facts), sizeof(Facts::words), words,
                              cudaMemcpyDeviceToDevice, stream) == cudaSuccess &&
      cudaMemcpyToSymbolAsync(facts, &host_facts, sizeof(u64), 0, cudaMemcpyHostToDevice, stream) == cudaSuccess)
    told = host_facts;
}

// Two words of memory, at a multiple of 16.
KVT_INLINE void load_two(u64 address, u64& first, u64& second) {
  asm volatile("ld.relaxed.cta.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address));
}

KVT_INLINE u32 now() {
  u32 time;
  asm volatile("mov.u32 %0, %globaltimer_lo;" : "=r"(time));
  return time;
}

// Adds in thread 0 of those that call; others get nothing. The predicate is the instruction's own: a compiler that sees
// a branch around it adds for all threads that might be there, and has them wait to share out the result.
KVT_INLINE u64 add_in_first(u64 address, u64 amount, int thread) {
  u64 before;
  asm volatile("{ .reg .pred first; setp.eq.s32 first, %3, 0; @first atom.relaxed.gpu.global.add.u64 %0, [%1], %2; }"
               : "=l"(before)
               : "l"(address), "l"(amount), "r"(thread)
               : "memory");
  return before;
}

KVT_INLINE u64 whole_now() {
  u64 time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

// Raises a word of memory. Nobody waits for it.
KVT_INLINE void raise(u64 address, u64 word) {
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}

KVT_INLINE void put_two(u64 address, u32 first, u32 second) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(first), "r"(second));
}

KVT_INLINE void put_half(u64 address, u32 half) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(half));
}

// Stores if the predicate holds. A branch around a store would keep instructions on either side apart.
KVT_INLINE void put_half_if(bool wanted, u64 address, u32 half) {
  asm volatile("{ .reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted st.global.b32 [%0], %1; }" ::"l"(address),
               "r"(half), "r"(static_cast<u32>(wanted)));
}

KVT_INLINE void put_pair_if(bool wanted, u64 address, u32 ticks) {
  asm volatile("{ .reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted st.global.u16 [%0], %1; }" ::"l"(address),
               "h"(static_cast<unsigned short>(ticks)), "r"(static_cast<u32>(wanted)));
}

KVT_INLINE void put_ticks(u64 address, u32 ticks) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(ticks));
}

KVT_INLINE u32 multiprocessor() {
  u32 number;
  asm("mov.u32 %0, %smid;" : "=r"(number));
  return number;
}

// The number of a word's highest bit.
KVT_INLINE u32 bits_of(u32 word) { return 31 - __clz(word); }

KVT_INLINE u32 sum_of_warp(u32 value) { return __reduce_add_sync(0xffffffffu, value); }
KVT_INLINE u64 of_first_lane(u64 value) { return __shfl_sync(0xffffffffu, value, 0); }

}  // namespace kvt

extern "C" __attribute__((weak, visibility("default"))) void kvt_facts(unsigned long long address) {
  kvt::host_facts = address;
}
#endif  // __CUDACC__: tests on a CPU bring what stands between these lines

namespace kvt {

// What a program finds out at its begin: what stands in the table where its layer would, facts, and the ring's state.
struct Found {
  u64 known, told, control, windows, program_room, tile_room, program_memory, tile_memory, pages_before, rows_before;
};

// Asks what the layer whose K has this address is told, and whether anything is written still. By an index that the
// compiler does not know, `zero`, constants are read by loads. Otherwise the instructions that need them read them, and
// wait, as they are in no cache when a kernel begins.
KVT_INLINE void look_up(u64 key, Found& found, u32 zero = 0) {
  static_assert(FACT_WINDOWS == FACT_CONTROL + 1 && FACT_CONTROL % 2 == 0, "two words at once");
  const Facts& known = (&facts)[zero];
  const u64 entry = known.words[FACT_LAYERS] + 16 * (key * known.words[FACT_FACTOR] >> known.words[FACT_SHIFT]);
  load_two(entry, found.known, found.told);
  load_two(known.address + 8 * FACT_CONTROL, found.control, found.windows);
}

// The same, and the ring's state.
KVT_INLINE void look_up_all(u64 key, Found& found, u32 zero = 0) {
  static_assert(TILES == PROGRAMS + 1 && (ROOM_WORD + PROGRAMS) % 2 == 0 && (ADDRESS_WORD + PROGRAMS) % 2 == 0 &&
                    FACT_ROWS_BEFORE == FACT_PAGES_BEFORE + 1 && FACT_PAGES_BEFORE % 2 == 0,
                "two words at once");
  const Facts& known = (&facts)[zero];
  const u64 control = known.words[FACT_CONTROL];
  look_up(key, found, zero);
  found.program_room = found.tile_room = 0;
  if (control) {
    load_two(control + 8 * (ROOM_WORD + PROGRAMS), found.program_room, found.tile_room);
    load_two(control + 8 * (ADDRESS_WORD + PROGRAMS), found.program_memory, found.tile_memory);
    load_two(known.address + 8 * FACT_PAGES_BEFORE, found.pages_before, found.rows_before);
  }
}

// The address of a layer's attention window on this multiprocessor's line; 0: no windows are kept.
KVT_INLINE u64 window_of(const Found& found) {
  const u32 way = multiprocessor() & (WINDOW_WAYS - 1), layer = static_cast<u32>(found.told) & 0xff;
  return found.windows ? found.windows + 8 * (layer * WINDOW_WORDS + way * WAY_WORDS + ATTENTION_WINDOW) : 0;
}

KVT_INLINE void raise_window(u64 window, u64 which, u64 word) {
  if (window) raise(window + 8 * which, word);
}

struct Place {
  u32 row, head, query_block;
  int first_page, tokens;
};

// What a program reads of a sequence: `tiles` from number `low` on, each of so many units: blocks, or parts of a block
// of which `per_block` make one. `blocks`: the sequence's; `known`: all of its units.
template <typename Id>
struct Part {
  const Id* blocks;
  int per_block, low, tiles, units, known;

  KVT_INLINE int first() const { return low * units; }
  KVT_INLINE int count() const { return tiles * units; }
  KVT_INLINE int inside() const {
    const int left = known - first();
    return left < 0 ? 0 : left < count() ? left : count();
  }
  KVT_INLINE u32 id(int unit) const {
    return static_cast<u32>(blocks[per_block == 1 ? first() + unit : (first() + unit) / per_block]);
  }
};

template <typename Id>
KVT_INLINE Part<Id> part_of(const Id* blocks, int per_block, int low, int tiles, int units, int known) {
  return {blocks, per_block, low, tiles, units, known};
}

// Whether the programs of a head sum up their blocks, or list them: what a layer is told has that head at a bit.
KVT_INLINE bool sums(u32 told, u32 head) { return (told >> 8 & 0xff) == head + 1; }
KVT_INLINE bool lists(u32 told, u32 head) { return (told >> 16 & 0xff) == head + 1; }

// The places of a program's tiles, and of its list behind them, which begins at an even one.
template <typename Id>
KVT_INLINE u32 places(const Part<Id>& part, bool listed) {
  return (part.tiles + 1 & ~1) + (listed ? 2 * part.count() : 0);
}

// Claims places for a program's record and its tiles: the first warp of those that multiply does. Whether it did; what
// the ring's counts were is told to its first thread, and nobody waits for that here.
template <typename Id>
KVT_INLINE bool claim(const Found& found, const Part<Id>& part, u32 head, int thread, u64& counts) {
  const bool wanted = facts.words[FACT_HEADS] >> head & 1;
  if (!wanted || !found.control || !found.tile_room || !found.program_room) return false;
  const u32 needed = places(part, lists(static_cast<u32>(found.told), head));
  counts = add_in_first(found.control + 8 * CURSOR_WORD, needed + (1ull << TILE_BITS), thread);
  return true;
}

// Writes the record of a program that claimed its places: the first thread does, to which they are returned. `flags`:
// those that tell the sizes and the order.
template <typename Id>
KVT_INLINE Reserved write_record(const Found& found, u64 counts, const Part<Id>& part, const Place& place, u32 start,
                                 u32 flags) {
  const u32 told = static_cast<u32>(found.told), room = static_cast<u32>(found.tile_room) & ~1u;
  const bool listed = lists(told, place.head);
  const u32 needed = places(part, listed);
  const u32 first = static_cast<u32>(counts), above = static_cast<u32>(counts >> 32);
  const u32 number = above >> (TILE_BITS - 32);
  if (above & (1u << (TILE_BITS - 32)) - 1 || needed > room || first > room - needed) return {};
  if (number >= static_cast<u32>(found.program_room)) return {};
  const Reserved reserved{found.tile_memory + 2ull * first, found.program_memory + 24ull * number};
  const u32 row = place.row + (static_cast<u64>(place.first_page) >= found.pages_before ? found.rows_before : 0);
  if (listed) flags |= LISTS_BLOCKS;
  if (listed || sums(told, place.head)) flags |= HAS_SUM;
  put_two(reserved.record, start, 0);
  put_two(reserved.record + 8, (row & 0xffff) | place.query_block << 16,
          (told & 0xff) | (place.head & 0xff) << 8 | static_cast<u32>(part.low) << 16);
  put_two(reserved.record + 16, static_cast<u32>(reserved.tiles >> 1), (part.tiles & 0xffff) | flags << 16);
  return reserved;
}

// Whether a program's blocks are to be told: their sum, or all of them.
KVT_INLINE bool tells_blocks(u32 told, u32 head) { return lists(told, head) || sums(told, head); }

// Lists a program's blocks behind its tiles, and puts their sum into its record: the same warp does.
template <typename Id>
KVT_INLINE void tell_blocks(const Reserved& reserved, u32 told, const Part<Id>& part, u32 head, int thread) {
  const u64 tiles = of_first_lane(reserved.tiles);
  if (!tiles) return;
  if (lists(told, head)) {
#pragma unroll 1
    for (int unit = thread; unit < part.count(); unit += 32)
      put_half(tiles + 2 * (part.tiles + 1 & ~1) + 4 * unit, unit < part.inside() ? part.id(unit) : ~0u);
  }
  if (!sums(told, head)) return;
  u32 total = 0;
#pragma unroll 1
  for (int unit = thread; unit < part.inside(); unit += 32) total += part.id(unit) * (2 * (part.first() + unit) + 1);
  total = sum_of_warp(total);
  if (thread == 0) put_half(reserved.record + 4, total);
}

// Whether a program's blocks and its number of tiles fit records.
KVT_INLINE bool fits(int page, int low, int high) {
  return page % 16 == 0 && page < 16 * 512 && low < high && high - low < 1 << 16;
}

KVT_INLINE u32 ticks_since(u32 time) {
  const u32 passed = now() - time >> TICK_SHIFT;
  return passed < 255 ? passed : 255;
}

// The ticks since the tile before, at most 255: of K in the first byte of a tile's pair, of V in the second.
template <int BYTE>
KVT_INLINE void mark(Program& program) {
  if (!program.address) return;
  const u32 ticks = ticks_since(program.times[BYTE]);
  put_ticks(program.address + 2 * (program.counts >> 16 * BYTE & 0xffff) + BYTE, ticks);
  program.counts += 1u << 16 * BYTE;
  program.times[BYTE] += ticks << TICK_SHIFT;
}

// A variant of attention that knows where its program is.
template <typename Variant>
struct Recording : Variant {
  using Variant::Variant;
  Program kvt_program;
  Place kvt_place;

  KVT_INLINE void kvt_at(int row, int head, int query_block, int first_page, int tokens) {
    kvt_program = Program{};
    kvt_place = Place{static_cast<u32>(row), static_cast<u32>(head), static_cast<u32>(query_block), first_page, tokens};
  }
};

template <typename Params, typename = void>
struct Paged : std::false_type {};
template <typename Params>
struct Paged<Params, std::void_t<decltype(std::declval<Params>().kv_indices), decltype(std::declval<Params>().K_ptr),
                                 decltype(std::declval<Params>().page_size)>> : std::true_type {};

// Of other kernels: nothing.
template <bool OTHER_ORDER, typename Params, typename Variant>
KVT_INLINE void begin(const Params&, Variant&, int, int, int, int) {}
template <bool OTHER_ORDER, typename Variant>
KVT_INLINE void key(Variant&) {}
template <bool OTHER_ORDER, typename Variant>
KVT_INLINE void value(Variant&) {}
template <typename Params, typename Variant>
KVT_INLINE void end(const Params&, Variant&, int) {}

// Begins a program: it takes part in its layer's window, and has its record written.
template <bool OTHER_ORDER, typename Params, typename Variant>
KVT_INLINE void begin(const Params& params, Recording<Variant>& variant, int high, int low, int thread, int tile) {
  if constexpr (Paged<Params>::value && !OTHER_ORDER) {
    if (thread >= 32 || !facts.address) return;
    Found found;
    const u64 key = reinterpret_cast<u64>(params.K_ptr);
    look_up_all(key, found);
    if (found.known != key) return;
    if (thread == 0) raise_window(window_of(found), FIRST, ~whole_now());
    const int page = static_cast<int>(static_cast<u32>(params.page_size)), unit = tile < page ? tile : page;
    if (!fits(page, low, high) || (tile < page ? page : tile) % unit) return;
    Program& program = variant.kvt_program;
    program.times[0] = program.times[1] = now();
    const Place& place = variant.kvt_place;
    const auto part = part_of(params.kv_indices + place.first_page, tile < page ? page / tile : 1, low, high - low,
                              tile / unit, (place.tokens + unit - 1) / unit);
    u64 counts;
    Reserved reserved{};
    if (claim(found, part, place.head, thread, counts) && thread == 0)
      reserved = write_record(found, counts, part, place, program.times[0],
                              (tile / 16 << 2) | (page / 16 << 6) | FROM_END);
    const u32 told = static_cast<u32>(found.told);
    if (tells_blocks(told, place.head)) tell_blocks(reserved, told, part, place.head, thread);
    program.address = reserved.tiles;
  }
}

// A tile's K has been multiplied; then its V.
template <bool OTHER_ORDER, typename Variant>
KVT_INLINE void key(Recording<Variant>& variant) {
  if constexpr (!OTHER_ORDER) mark<0>(variant.kvt_program);
}
template <bool OTHER_ORDER, typename Variant>
KVT_INLINE void value(Recording<Variant>& variant) {
  if constexpr (!OTHER_ORDER) mark<1>(variant.kvt_program);
}

template <typename Params, typename Variant>
KVT_INLINE void end(const Params& params, Recording<Variant>& variant, int thread) {
  if constexpr (Paged<Params>::value) {
    if (thread != 0 || !facts.address) return;
    Found found;
    const u64 key = reinterpret_cast<u64>(params.K_ptr);
    look_up(key, found);
    if (found.known == key) raise_window(window_of(found), LAST, whole_now());
  }
}

// What a program that goes forward asks for and is told later: also where its sequence's pages begin, and what the
// ring's counts were when it claimed its places, if it did.
struct Asked {
  Found found;
  int first_page;
  bool claimed;
  u64 counts;
};

// In front of its first copies, a program's first warp asks for all that it needs to know.
template <bool OTHER_ORDER, typename Cache, typename Thread>
KVT_INLINE void ask_forward(Asked& asked, const Cache& cache, u32 row, const Thread& thread) {
  const u32 zero = thread.x >> 5;
  if (OTHER_ORDER || thread.y | thread.z || !(&facts)[zero].address) return;
  look_up_all(reinterpret_cast<u64>(cache.k_data), asked.found, zero);
  asked.first_page = static_cast<int>(cache.indptr[row]);
}

// The blocks of a program's part; tiles are blocks where these are smaller. Divisions are as slow as loads here; the
// smaller of the two sizes is a power of two.
template <typename Cache>
KVT_INLINE auto forward_part(const Cache& cache, u32 low, u32 units, int first_page, u32 tokens, u32 tile) {
  const u32 page = cache.page_size, unit = tile < page ? tile : page, bits = bits_of(unit);
  return part_of(cache.indices + first_page, page > unit ? page >> bits : 1, low, units, 1,
                 static_cast<int>(tokens + unit - 1 >> bits));
}

// The same of `length` tokens from `begin` on, in `count` tiles; whether a record can tell of them.
template <typename Cache>
KVT_INLINE bool forward_span(const Cache& cache, u32 begin, u32 length, u32 count, u32 tile, u32& low, u32& units) {
  const u32 page = cache.page_size, unit = tile < page ? tile : page, bits = bits_of(unit);
  const u32 read = count * tile < length ? count * tile : length;
  low = begin >> bits, units = read + unit - 1 >> bits;
  return !(unit & unit - 1 | (begin | page | tile) & (unit - 1 | 15)) && page < 16 * 512 && units < 1 << 16;
}

// When the copies of its first K have been issued, a program claims its places: one a block, where a tile has several.
template <bool OTHER_ORDER, typename Cache, typename Thread>
KVT_INLINE void claim_forward(Asked& asked, const Cache& cache, u32 head, u32 tokens, const Thread& thread, u32 begin,
                              u32 length, u32 count, u32 tile) {
  if (OTHER_ORDER || thread.y | thread.z || !count) return;
  u32 low, units;
  if (!forward_span(cache, begin, length, count, tile, low, units)) return;
  if (asked.found.known != reinterpret_cast<u64>(cache.k_data)) return;  // it is 0 if nothing was asked
  asked.claimed = claim(asked.found, forward_part(cache, low, units, 0, tokens, tile), head, thread.x, asked.counts);
}

// When its first copies have been issued, it takes part in the window, and writes its record.
template <bool OTHER_ORDER, typename Cache, typename Thread>
KVT_INLINE void begin_forward(Forward& program, const Asked& asked, const Cache& cache, u32 row, u32 head,
                              u32 query_block, u32 tokens, const Thread& thread, u32 begin, u32 length, u32 count,
                              u32 tile) {
  if (OTHER_ORDER || thread.y | thread.z || !count) return;
  const u64 began = whole_now();
  const Found& found = asked.found;
  if (found.known != reinterpret_cast<u64>(cache.k_data)) return;
  program.window = window_of(found);
  if (thread.x == 0) raise_window(program.window, FIRST, ~began);
  if (!asked.claimed) return;
  u32 low, units;
  forward_span(cache, begin, length, count, tile, low, units);
  const u32 page = cache.page_size, bits = bits_of(tile < page ? tile : page), start = static_cast<u32>(began);
  const Place place{row, head, query_block, asked.first_page, static_cast<int>(tokens)};
  if (thread.x == 0)
    program.reserved =
        write_record(found, asked.counts, forward_part(cache, low, units, asked.first_page, tokens, tile), place, start,
                     bits - 4 << 2 | page / 16 << 6);
  program.told = static_cast<u32>(found.told);
  program.time = start;
  program.low = low;
  program.units = units;
  program.left = program.reserved.tiles ? units : 0;
  program.blocks = tile >> bits;
}

// A tile's K has been multiplied. What a thread keeps that does not write is of no use, but costs less than a branch.
KVT_INLINE void forward_key(Forward& program) {
  program.ticks = ticks_since(program.time);
  program.time += program.ticks << TICK_SHIFT;
}

// And its V.
template <int TILE>
KVT_INLINE void forward_value(Forward& program) {
  const u64 address = program.reserved.tiles;
  const u32 value = ticks_since(program.time) << 8;
  const u32 blocks = program.blocks < program.left ? program.blocks : program.left;
  const u32 many = program.blocks == 1 ? 0 : blocks;
  put_pair_if(blocks != many, address, program.ticks | value);
  u32 pair = value << 16 | value | program.ticks;  // a tile begins at an even place; behind a program's last is room
#pragma unroll
  for (u32 block = 0; block < TILE / 16; block += 2) {
    put_half_if(block < many, address + 2 * block, pair);
    pair = value << 16 | value;
  }
  program.reserved.tiles += 2 * blocks;
  program.left -= blocks;
}

// All of a program's tiles have been multiplied: it tells of its blocks, and takes part in the window once more.
template <typename Cache, typename Thread>
KVT_INLINE void leave(const Forward& program, const Cache& cache, u32 row, u32 head, u32 tokens, const Thread& thread,
                      u32 tile) {
  if (tells_blocks(program.told, head)) {  // what other warps are told is 0
    const int first_page = static_cast<int>(cache.indptr[row]);
    const auto part = forward_part(cache, program.low, program.units, first_page, tokens, tile);
    const u64 behind = program.reserved.tiles, tiles = behind ? behind - 2ull * program.units : 0;
    tell_blocks({tiles, program.reserved.record}, program.told, part, head, thread.x);
  }
  if (!(thread.x | thread.y | thread.z)) raise_window(program.window, LAST, whole_now());
}

}  // namespace kvt
"""
)
"""The header `rewrite.RECORDER_HEADER`."""
