"""Calls that rewriting adds to FlashAttention 4's kernels, in the CuTe DSL. `tiles/layout.py` says what they write.

What the times mean. Warps are specialised: producers copy tiles into shared memory, ahead of the warps that multiply
them. The first thread of those stamps, where a tile's shared memory is given back to the producers. When a copy was
issued is not recorded. A program goes from its last tile to its first, and both times count from those of the tile
before (`FROM_END`).

On Hopper the warps that multiply wait for their products. So a tile's K time is when the product with its K is
complete, and its V time when that with its V is. The next tile's K is multiplied before a tile's V.

On Blackwell one warp issues a program's products, and waits for none of them: the tensor cores give the memory back
themselves. So a tile's K time is when its K is in shared memory and the products with it have been issued. For V it is
the same, behind the softmax of the tile's scores. Other warps wait for the last product, and their first thread ends
the program's part in the window.

Only one thread has an address to write to. All others, and all threads in a step that is not recorded, have 0: the
added instructions are predicated on it, so nothing branches while products are under way.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, const_expr, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from kvtrace.format.tile_file import FROM_END, HAS_SUM, LISTS_BLOCKS, TICK_SHIFT
from kvtrace.probes.device.tiles import layout

_WARP = 32
_WINDOW_BYTES = 8 * layout.WINDOW_WORDS
_FIRST, _LAST = (8 * (layout.ATTENTION_WINDOW + word) for word in (layout.FIRST, layout.LAST))
_A_PROGRAM = 1 << layout.TILE_BITS
_CURSOR = 8 * layout.CURSOR_WORDS[layout.PROGRAMS]
_TILE_ROOM, _PROGRAM_ROOM = 8 * (layout.ROOM_WORD + layout.TILES), 8 * (layout.ROOM_WORD + layout.PROGRAMS)
_TILE_ADDRESS, _PROGRAM_ADDRESS = 8 * (layout.ADDRESS_WORD + layout.TILES), 8 * (layout.ADDRESS_WORD + layout.PROGRAMS)


def _assembly(result, text, constraints, *operands, loc=None, ip=None):
    """Inline assembly that stays where it stands."""
    return llvm.inline_asm(
        result,
        [operand.ir_value(loc=loc, ip=ip) for operand in operands],
        text,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def _load(address: Int64, wanted: Int32, *, loc=None, ip=None) -> Int64:
    """A word of memory, in threads that want it; 0 in others."""
    text = """{
        .reg .pred %kvtp;
        setp.ne.s32 %kvtp, $2, 0;
        mov.b64 $0, 0;
        @%kvtp ld.relaxed.cta.global.b64 $0, [$1];
    }"""
    return Int64(_assembly(T.i64(), text, "=&l,l,r", address, wanted, loc=loc, ip=ip))


@dsl_user_op
def _now(thread: Int32, *, loc=None, ip=None) -> Int32:
    """The timer's low word, in thread 0: the warps of an SM read the timer one after the other."""
    text = """{
        .reg .pred %kvtp;
        setp.ne.s32 %kvtp, $1, 0;
        mov.u32 $0, 0;
        @%kvtp bra KVT_OTHERS;
        mov.u32 $0, %globaltimer_lo;
        KVT_OTHERS:
    }"""
    return Int32(_assembly(T.i32(), text, "=&r,r", thread, loc=loc, ip=ip))


@dsl_user_op
def _raise_to_now(address: Int64, thread: Int32, complement: bool, *, loc=None, ip=None) -> None:
    """Raise a word of memory to the time, or to its complement, in thread 0. Nobody waits for it.

    Each thread has another address: for a warp's threads on one the largest value would be searched first.
    """
    text = f"""{{
        .reg .pred %kvtp;
        .reg .u32 %kvtw;
        .reg .u64 %kvta, %kvtn;
        mad.wide.u32 %kvta, $1, 8, $0;
        setp.ne.s32 %kvtp, $1, 0;
        @%kvtp bra KVT_OTHERS;
        mov.u32 %kvtw, %smid;
        and.b32 %kvtw, %kvtw, {layout.WINDOW_WAYS - 1};
        mad.wide.u32 %kvta, %kvtw, {8 * layout.WAY_WORDS}, %kvta;
        mov.u64 %kvtn, %globaltimer;
        {"not.b64 %kvtn, %kvtn;" if complement else ""}
        red.relaxed.gpu.global.max.u64 [%kvta], %kvtn;
        KVT_OTHERS:
    }}"""
    _assembly(None, text, "l,r", address, thread, loc=loc, ip=ip)


@dsl_user_op
def _reserve(counter: Int64, thread: Int32, amount: Int64, room: Int64, *, loc=None, ip=None) -> Int64:
    """Add to a counter in thread 0, where there is room: what it was.

    Each thread has another address: if a warp's had one, it would add once for all and hand the result around.
    """
    text = """{
        .reg .pred %kvtp;
        .reg .u64 %kvta;
        setp.eq.s32 %kvtp, $2, 0;
        setp.gt.and.s64 %kvtp, $4, 0, %kvtp;
        mad.wide.u32 %kvta, $2, 8, $1;
        mov.b64 $0, 0;
        @%kvtp atom.relaxed.gpu.global.add.u64 $0, [%kvta], $3;
    }"""
    return Int64(_assembly(T.i64(), text, "=&l,l,r,l,l", counter, thread, amount, room, loc=loc, ip=ip))


@dsl_user_op
def _warp_sum(value: Int32, *, loc=None, ip=None) -> Int32:
    text = "redux.sync.add.s32 $0, $1, 0xffffffff;"
    return Int32(_assembly(T.i32(), text, "=r,r", value, loc=loc, ip=ip))


@dsl_user_op
def _put(address: Int64, first: Int64, second: Int64, third: Int64, wanted: Int64, *, loc=None, ip=None) -> None:
    """Store three words, if `wanted` is not 0."""
    text = """{
        .reg .pred %kvtp;
        setp.ne.s64 %kvtp, $4, 0;
        @%kvtp st.global.b64 [$0], $1;
        @%kvtp st.global.b64 [$0+8], $2;
        @%kvtp st.global.b64 [$0+16], $3;
    }"""
    _assembly(None, text, "l,l,l,l,l", address, first, second, third, wanted, loc=loc, ip=ip)


@dsl_user_op
def _put_block(address: Int64, block: Int32, *, loc=None, ip=None) -> None:
    _assembly(None, "st.global.b32 [$0], $1;", "l,r", address, block, loc=loc, ip=ip)


@dsl_user_op
def _mark(address: Int64, place: Int32, since: Int32, byte: int, *, loc=None, ip=None) -> Int32:
    """Store the ticks since `since`, at most 255, at `address + 2 * place + byte`, if the address is not 0.

    Returns the ticks.
    """
    text = f"""{{
        .reg .pred %kvtp;
        .reg .u64 %kvta;
        setp.eq.s64 %kvtp, $1, 0;
        mov.u32 $0, 0;
        @%kvtp bra KVT_OTHERS;
        mov.u32 $0, %globaltimer_lo;
        sub.u32 $0, $0, $3;
        shr.u32 $0, $0, {TICK_SHIFT};
        min.u32 $0, $0, 255;
        mad.wide.u32 %kvta, $2, 2, $1;
        st.global.u8 [%kvta+{byte}], $0;
        KVT_OTHERS:
    }}"""
    return Int32(_assembly(T.i32(), text, "=&r,l,r,r", address, place, since, loc=loc, ip=ip))


def kvt_inputs(kernel, aux_data, page_table):
    """Note what a launch was given. Returns the kernel's own auxiliary data: kvtrace's scalar comes last in it."""
    *others, kernel.kvt_what = aux_data.scalars
    kernel.kvt_page_table = page_table
    return aux_data._replace(scalars=tuple(others) or None)


def kvt_prepare(kernel):
    """Make room for what those that stamp keep in registers: an address, and of K and V the count and the last time."""
    if not kernel.kvt_control:
        return
    kernel.kvt_address = cute.make_rmem_tensor((1,), Int64)
    kernel.kvt_counts = cute.make_rmem_tensor((2,), Int32)
    kernel.kvt_times = cute.make_rmem_tensor((2,), Int32)


@cute.jit
def kvt_begin(self, thread: Int32, low: Int32, high: Int32, tokens: Int32, row: Int32, head: Int32, query_block: Int32):
    """Begin a program: it takes part in its layer's window, and has its record written.

    Args:
        self: The kernel's object. `kvt_control`, `kvt_windows`, `kvt_heads`, and the tokens of a tile and of a page are
            constants of the compilation; of the first two, 0 leaves out what they are for.
        thread: The number of the thread among those of which the first one stamps.
        low: First tile.
        high: Behind the last tile. A program without any reads one all the same.
        tokens: The sequence's length.
        row: Row of the batch.
        head: Head of the grid.
        query_block: Which of the row's groups of queries.
    """
    if const_expr(self.kvt_windows != 0):
        _raise_to_now(_word_of(self, _FIRST), thread, True)
    if const_expr(self.kvt_control != 0):
        _begin_record(self, thread, low, high, tokens, row, head, query_block)


@cute.jit
def kvt_end(self, thread: Int32, last: cutlass.Constexpr = True):
    """End a program: all its tiles have been multiplied, if this is the last group of its queries."""
    if const_expr(self.kvt_windows != 0 and last):
        _raise_to_now(_word_of(self, _LAST), thread, False)


@cute.jit
def _word_of(self, word: int) -> Int64:
    """The address of a word of the layer's window."""
    return Int64(const_expr(self.kvt_windows + word)) + Int64(self.kvt_what & 0xFF) * _WINDOW_BYTES


@cute.jit
def _begin_record(self, thread, low, high, tokens, row, head, query_block):
    """Reserve a program's record and its tiles, and write the record."""
    tile, page = const_expr(self.kvt_tile_tokens), const_expr(self.kvt_page_tokens)
    unit = const_expr(min(tile, page))
    start = _now(thread)
    last = cutlass.max(high - 1, 0)
    first = cutlass.min(low, last)
    tiles = last - first + 1
    if const_expr(not self.pack_gqa):
        head = head // self.qhead_per_kvhead
    what = self.kvt_what
    in_warp = Int32(thread < _WARP)
    sums = Int32(((what >> 8) & 0xFF) == head + 1)
    lists = Int32((what >> 16) == head + 1)
    blocks = tiles * const_expr(tile // unit)
    slots = Int64(((tiles + 1) & -2) + lists * 2 * blocks)

    control = const_expr(self.kvt_control)
    room = _load(Int64(control + _TILE_ROOM), in_warp)
    tile_memory = _load(Int64(control + _TILE_ADDRESS), in_warp)
    program_room = _load(Int64(control + _PROGRAM_ROOM), in_warp)
    program_memory = _load(Int64(control + _PROGRAM_ADDRESS), in_warp)
    if const_expr(self.kvt_heads != -1):
        room = room * ((Int64(self.kvt_heads) >> Int64(head)) & 1)
    pair = _reserve(Int64(control + _CURSOR), thread, slots + _A_PROGRAM, room)

    # The blocks between the first tile and the sequence's end.
    before = first * const_expr(tile // unit)
    inside = cutlass.max(cutlass.min(blocks, (tokens + (unit - 1)) // unit - before), 0)
    total = Int32(0)
    for index in cutlass.range(thread, inside * sums * in_warp, _WARP, unroll=1):
        block = self.kvt_page_table[row, (before + index) * unit // page]
        total += block * (2 * (before + index) + 1)
    total = _warp_sum(total)

    place, program = pair & layout.TILE_MASK, pair >> layout.TILE_BITS
    fits = Int64(thread == 0) * Int64(room > 0) * Int64(place + slots <= room) * Int64(program < program_room)
    address = (tile_memory + place * 2) * fits
    flags = const_expr((tile // 16 << 2) | (page // 16 << 6) | FROM_END)
    _put(
        program_memory + program * 24,
        (Int64(start) & 0xFFFFFFFF) | (Int64(total) << 32),
        (Int64(row) & 0xFFFF) | ((Int64(query_block) & 0xFFFF) << 16) | (Int64(what & 0xFF) << 32)
        | (Int64(head & 0xFF) << 40) | (Int64(first) << 48),
        (((tile_memory >> 1) + place) & 0xFFFFFFFF) | (Int64(tiles & 0xFFFF) << 32)
        | (Int64(flags | sums * HAS_SUM | lists * (HAS_SUM | LISTS_BLOCKS)) << 48),
        address,
    )  # fmt: skip
    self.kvt_address[0] = address
    for index in cutlass.range_constexpr(2):
        self.kvt_counts[index] = Int32(0)
        self.kvt_times[index] = start

    # Behind the tiles, at an even place.
    there = cute.arch.shuffle_sync(Int32(fits) * lists, 0) * in_warp
    behind = tile_memory + 2 * Int64(cute.arch.shuffle_sync(Int32(place), 0) + ((tiles + 1) & -2))
    for index in cutlass.range(thread, blocks * there, _WARP, unroll=1):
        known = Int32(index < inside)
        block = self.kvt_page_table[row, (before + index * known) * unit // page]
        _put_block(behind + 4 * Int64(index), block * known - (1 - known))


@cute.jit
def kvt_key(self):
    """Record that a tile's K is given back."""
    if const_expr(self.kvt_control != 0):
        ticks = _mark(self.kvt_address[0], self.kvt_counts[0], self.kvt_times[0], 0)
        self.kvt_counts[0] += 1
        self.kvt_times[0] += ticks << TICK_SHIFT


@cute.jit
def kvt_value(self):
    """Record that a tile's V is given back: the second byte of its pair."""
    if const_expr(self.kvt_control != 0):
        ticks = _mark(self.kvt_address[0], self.kvt_counts[1], self.kvt_times[1], 1)
        self.kvt_counts[1] += 1
        self.kvt_times[1] += ticks << TICK_SHIFT
