"""Functions that the rewritten headers call, in CUDA C++. `tiles/layout.py` says what is written.

What the times mean in `fa3`. Warps are specialised: producers copy tiles into shared memory, ahead of the consumers
that multiply them. The first thread of the consumers stamps. A tile's K time is when the product with its K is
complete, and its V time when that with its V is: then its shared memory is given back to the producers. When a copy was
issued is not recorded. A program goes from its last tile to its first, and multiplies the next tile's K before a tile's
V. So both times count from those of the tile before (`FROM_END`).

In `fa2`, the same warps load and multiply. A program goes from the first tile of its part of the sequence to the last.
Its first thread stamps behind the barriers that follow the products, when no warp needs the tile's memory any more.
Parts begin at a block, not at a multiple of a tile. So a tile of several blocks is recorded as these, with the same
times.

A compiled library outlives the process and serves others, so no address is a constant of its code: each of its sources
has constant memory for the facts (`FACTS`), which is filled before the first launch. A kernel is not told its layer: it
looks up the address of the layer's K in a table whose hash has no collisions.

A decode's program takes some ten microseconds, and a load from memory 0.3. So `fa2` asks for all that it wants to know
before it learns which sequence is its own, and looks at the answers when its first tile is on its way. No load waits
for another one, and the reservation is on its way while block ids are summed up.
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

// The same for a program that goes forward: the address of its next block, the last time of K, the ticks to it, the
// blocks that are left, the blocks of a tile, and its window (0: none).
struct Forward {
  u64 address, start;
  u32 time, ticks, left, blocks, window;
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

KVT_INLINE u64 load(u64 address) {
  u64 word;
  asm volatile("ld.relaxed.cta.global.b64 %0, [%1];" : "=l"(word) : "l"(address));
  return word;
}

KVT_INLINE u32 now() {
  u32 time;
  asm volatile("mov.u32 %0, %globaltimer_lo;" : "=r"(time));
  return time;
}

KVT_INLINE u64 add(u64 address, u64 amount) {
  u64 before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(address), "l"(amount) : "memory");
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

KVT_INLINE void put(u64 address, u64 word) {
  asm volatile("st.global.b64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}

KVT_INLINE void put_half(u64 address, u32 half) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(half) : "memory");
}

KVT_INLINE void put_ticks(u64 address, u32 ticks) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(ticks) : "memory");
}

KVT_INLINE void put_pair(u64 address, u32 ticks) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(static_cast<unsigned short>(ticks)) : "memory");
}

KVT_INLINE u32 multiprocessor() {
  u32 number;
  asm("mov.u32 %0, %smid;" : "=r"(number));
  return number;
}

KVT_INLINE u32 sum_of_warp(u32 value) { return __reduce_add_sync(0xffffffffu, value); }
KVT_INLINE u64 of_first_lane(u64 value) { return __shfl_sync(0xffffffffu, value, 0); }

}  // namespace kvt

extern "C" __attribute__((weak, visibility("default"))) void kvt_facts(unsigned long long address) {
  kvt::host_facts = address;
}
#endif  // __CUDACC__: tests on a CPU bring what stands between these lines

namespace kvt {

// What a program finds out at its begin. `what`: what its layer is told, or -1: it is not recorded. `known` and `told`:
// what stands in the table where the layer would.
struct Found {
  long long what;
  u64 known, told, windows, control, tile_room, program_room, tile_memory, program_memory, pages_before, rows_before;
};

KVT_INLINE u64 word_of(u64 fact) { return load(facts.address + 8 * fact); }

// Asks what the layer whose K has this address is told, and whether windows are kept still.
KVT_INLINE void look_up(u64 key, Found& found) {
  const u64 entry = facts.words[FACT_LAYERS] + 16 * (key * facts.words[FACT_FACTOR] >> facts.words[FACT_SHIFT]);
  found.known = load(entry);
  found.told = load(entry + 8);
  found.windows = word_of(FACT_WINDOWS);
}

// Whether that layer is recorded: the first look at an answer, which waits for it.
KVT_INLINE bool is_recorded(u64 key, Found& found) {
  found.what = found.known == key ? static_cast<long long>(found.told) : -1;
  return found.what >= 0;
}

// The same, and the ring's state.
KVT_INLINE void look_up_all(u64 key, Found& found) {
  const u64 control = facts.words[FACT_CONTROL];
  found.control = found.tile_room = found.program_room = 0;
  if (control) {
    found.control = word_of(FACT_CONTROL);
    found.tile_room = load(control + 8 * (ROOM_WORD + TILES));
    found.program_room = load(control + 8 * (ROOM_WORD + PROGRAMS));
    found.tile_memory = load(control + 8 * (ADDRESS_WORD + TILES));
    found.program_memory = load(control + 8 * (ADDRESS_WORD + PROGRAMS));
    found.pages_before = word_of(FACT_PAGES_BEFORE);
    found.rows_before = word_of(FACT_ROWS_BEFORE);
  }
  look_up(key, found);
}

// The number of a layer's attention window, from 1 on, on this multiprocessor's line; 0: no windows are kept.
KVT_INLINE u32 window_of(const Found& found) {
  const u32 way = multiprocessor() & (WINDOW_WAYS - 1);
  return found.windows ? 1 + (found.what & 0xff) * WINDOW_WORDS + way * WAY_WORDS + ATTENTION_WINDOW : 0;
}

KVT_INLINE void raise_window(u32 window, u64 which, u64 word) {
  if (window) raise(facts.words[FACT_WINDOWS] + 8 * (window - 1 + which), word);
}

struct Place {
  u32 row, head, query_block;
  int first_page, tokens;
};

// Reserves a program's record and its tiles, and writes the record: the first warp of those that multiply does.
// `unit`: tokens of a block or of a tile, whichever are fewer; `units`: those of a tile. `order`: flags that tell the
// tile's size and the order. Returns the address of the tiles in the first thread, else 0.
template <typename Id>
KVT_INLINE u64 begin_record(const Found& found, const Id* pages, int page, int unit, int units, int low, int high,
                            int thread, const Place& place, u32 start, u64 order) {
  const u64 room = facts.words[FACT_HEADS] >> place.head & 1 ? found.tile_room : 0;
  if (!found.control || !room || !found.program_room) return 0;
  const long long what = found.what;
  const u32 row = place.row + (static_cast<u64>(place.first_page) >= found.pages_before ? found.rows_before : 0);
  const int tiles = high - low, before = low * units, blocks = tiles * units;
  const bool sums = (what >> 8 & 0xff) == place.head + 1, lists = (what >> 16 & 0xff) == place.head + 1;
  const u64 slots = (tiles + 1 & ~1) + (lists ? 2ull * blocks : 0);
  u64 pair = 0;
  if (thread == 0) pair = add(found.control + 8 * CURSOR_WORD, slots + (1ull << TILE_BITS));

  pages += place.first_page;
  int inside = 0;
  u32 total = 0;
  if (sums || lists) {
    const int known = (place.tokens + unit - 1) / unit - before;
    inside = known < 0 ? 0 : known < blocks ? known : blocks;
  }
  if (sums) {
    for (int index = thread; index < inside; index += 32)
      total += static_cast<u32>(pages[(before + index) * unit / page]) * (2 * (before + index) + 1);
    total = sum_of_warp(total);
  }

  pair = of_first_lane(pair);
  const u64 first = pair & TILE_MASK, number = pair >> TILE_BITS;
  if (first + slots > room || number >= found.program_room) return 0;
  if (thread == 0) {
    const u64 flags = order | (page / 16 << 6) | (sums ? HAS_SUM : 0) | (lists ? HAS_SUM | LISTS_BLOCKS : 0);
    const u64 record = found.program_memory + 24 * number;
    put(record, start | static_cast<u64>(total) << 32);
    put(record + 8, (row & 0xffffull) | (place.query_block & 0xffffull) << 16 | (what & 0xffull) << 32 |
                        (place.head & 0xffull) << 40 | (low & 0xffffull) << 48);
    put(record + 16, ((found.tile_memory >> 1) + first & 0xffffffffull) | (tiles & 0xffffull) << 32 | flags << 48);
  }
  if (lists)  // behind the tiles, at an even place
    for (int index = thread; index < blocks; index += 32)
      put_half(found.tile_memory + 2 * (first + (tiles + 1 & ~1)) + 4 * index,
               index < inside ? static_cast<u32>(pages[(before + index) * unit / page]) : ~0u);
  return thread == 0 ? found.tile_memory + 2 * first : 0;
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
    if (!is_recorded(key, found)) return;
    if (thread == 0) raise_window(window_of(found), FIRST, ~whole_now());
    const int page = static_cast<int>(static_cast<u32>(params.page_size)), unit = tile < page ? tile : page;
    if (!fits(page, low, high) || (tile < page ? page : tile) % unit) return;
    Program& program = variant.kvt_program;
    program.times[0] = program.times[1] = now();
    program.address = begin_record(found, params.kv_indices, page, unit, tile / unit, low, high, thread,
                                   variant.kvt_place, program.times[0], (tile / 16 << 2) | FROM_END);
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
    if (is_recorded(key, found)) raise_window(window_of(found), LAST, whole_now());
  }
}

// A program that goes forward asks for what it will want to know. It waits for nothing.
template <bool OTHER_ORDER, typename Cache, typename Thread>
KVT_INLINE Found ask(const Cache& cache, const Thread& thread) {
  Found found;
  found.known = 0;
  if (!OTHER_ORDER && facts.address && !(thread.y | thread.z)) look_up_all(reinterpret_cast<u64>(cache.k_data), found);
  return found;
}

// It is about to load.
template <bool OTHER_ORDER, typename Thread>
KVT_INLINE void enter(Forward& program, const Thread& thread) {
  program = Forward{};
  if (!OTHER_ORDER && facts.address && !(thread.x | thread.y | thread.z)) program.start = whole_now();
}

// It knows its tiles, which begin at any block: it takes part in the window, and has its record written, block by block
// where a tile has several.
template <bool OTHER_ORDER, typename Cache, typename Thread>
KVT_INLINE void begin_forward(Forward& program, Found& found, const Cache& cache, u32 row, u32 head, u32 query_block,
                              u32 begin, u32 length, u32 tokens, u32 count, u32 tile, const Thread& thread) {
  if (OTHER_ORDER || thread.y || thread.z || !facts.address || !count) return;
  const int first_page = static_cast<int>(cache.indptr[row]);
  if (!is_recorded(reinterpret_cast<u64>(cache.k_data), found)) return;
  program.window = window_of(found);
  if (thread.x == 0) raise_window(program.window, FIRST, ~program.start);
  // Divisions are as slow as loads here; sizes are powers of two.
  const u32 page = cache.page_size, unit = tile < page ? tile : page;
  u32 bits = 4;
  while (1u << bits < unit) ++bits;
  const u32 read = count * tile < length ? count * tile : length;
  const u32 low = begin >> bits, high = low + (read + unit - 1 >> bits);
  if (1u << bits != unit || (begin | page | tile) & (unit - 1) || !fits(page, low, high)) return;
  const Place place{row, head, query_block, first_page, static_cast<int>(tokens)};
  program.time = static_cast<u32>(program.start);
  program.left = high - low;
  program.blocks = tile >> bits;
  program.address = begin_record(found, cache.indices, page, unit, 1, low, high, thread.x, place, program.time,
                                 static_cast<u64>(bits - 4) << 2);
}

// Every thread counts, and the one that has an address stores.
KVT_INLINE void forward_key(Forward& program) {
  program.ticks = ticks_since(program.time);
  program.time += program.ticks << TICK_SHIFT;
}

template <int TILE>
KVT_INLINE void forward_value(Forward& program) {
  const u32 value = ticks_since(program.time) << 8;
  const u32 blocks = program.blocks < program.left ? program.blocks : program.left;
  if (program.blocks == 1) {
    if (program.address) put_pair(program.address, program.ticks | value);
  } else {  // a tile begins at an even place, and behind the last one of a program is room for another
    u32 pair = value << 16 | value | program.ticks;
#pragma unroll
    for (u32 block = 0; block < TILE / 16; block += 2) {
      if (program.address && block < blocks) put_half(program.address + 2 * block, pair);
      pair = value << 16 | value;
    }
  }
  program.left -= blocks;
  program.address += program.address ? 2 * blocks : 0;
}

// All of a program's tiles have been multiplied.
template <bool OTHER_ORDER, typename Thread>
KVT_INLINE void leave(const Forward& program, const Thread& thread) {
  if (!OTHER_ORDER && !(thread.x | thread.y | thread.z)) raise_window(program.window, LAST, whole_now());
}

}  // namespace kvt
"""
)
"""The header `rewrite.RECORDER_HEADER`."""
