"""Inline assembly for Triton kernels: the time at which a value is there, and memory accesses that nobody waits for.

Where a value is waited for (cache writes), the timer is read under a predicate that compares it with one bit pattern,
so the hardware has the value before it reads, and no compiler can move the read forward. The program's first thread
reads, and its first element of the value is the one waited for. Where instructions are only to be issued before
(attention), no compiler moves them across the read, and the hardware issues them in order: their operands are there
then. `%globaltimer_lo`: nanoseconds, low word, in steps of 32 ns on an H200.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvtrace.probes.device.tiles.layout import TILE_BITS, TILE_MASK, WAY_WORDS, WINDOW_WAYS

_NEVER = "0x7fedcba9"  # a NaN that arithmetic does not produce

# Elements a thread hands to one piece of assembly. What it has less is padded, what it has more comes in a later piece.
_FEW = 4


_FIRST_THREAD = """
    .reg .pred %kvtp; .reg .u32 %kvtt;
    mov.u32 %kvtt, %tid.x;
    setp.eq.u32 %kvtp, %kvtt, 0;
"""
"""%kvtp tells the program's first thread; %kvtt is its number, to be used again."""


def _ticks(time: str, since: str, only: str = "") -> str:
    """Turn a register with a time into ticks of 32 ns since another one, at most 255; the time where not `only`."""
    return f"""
        {only} sub.u32 {time}, {time}, {since};
        shr.u32 {time}, {time}, 5;
        min.u32 {time}, {time}, 255;
    """


_TICKS = tl.constexpr(f"""{{{_FIRST_THREAD}
    setp.ne.and.b32 %kvtp, ${_FEW}, {_NEVER}, %kvtp;
    mov.u32 %kvtt, 0;
    @%kvtp mov.u32 %kvtt, %globaltimer_lo;
    {_ticks("%kvtt", f"${2 * _FEW}", only="@%kvtp")}
    mov.u32 $0, %kvtt;
}}""")
_TICKS_CONSTRAINTS = tl.constexpr(",".join(["=&r"] * _FEW + ["r"] * 2 * _FEW))
_TICKS_PACK = tl.constexpr(_FEW)

# Operands: `since`, the time of K, the pair of places, the end of those with room, and the address of place 0. A place
# is the lower word of the pair. A step that asks for more places than a word counts has no room, and is dropped whole.
# The timer is read by all threads: ptxas makes that of a read under a predicate, too.
_MARK = tl.constexpr(f"""{{{_FIRST_THREAD}
    .reg .u32 %kvtl, %kvtv; .reg .u64 %kvta;
    mov.u32 %kvtv, %globaltimer_lo;
    mov.b64 {{%kvtl, _}}, $3;
    setp.gt.and.u32 %kvtp, $4, %kvtl, %kvtp;
    mad.wide.u32 %kvta, %kvtl, 2, $5;
    mov.u32 %kvtt, $2;
    {_ticks("%kvtt", "$1")}
    shl.b32 %kvtl, %kvtt, 5;
    add.u32 $0, $1, %kvtl;
    {_ticks("%kvtv", "$0")}
    prmt.b32 %kvtt, %kvtt, %kvtv, 0x3240;
    @%kvtp st.global.u16 [%kvta], %kvtt;
}}""")

_BEHIND = tl.constexpr(" ".join(f"mov.u32 ${number}, 0;" for number in range(_FEW)))
_BEHIND_CONSTRAINTS = tl.constexpr(",".join(["=r"] * _FEW + ["r"] * _FEW))

# Operands: the pair of places, the end of those with room, the programs that find room, the address of the first one's
# record, and the record's words; place 0 of the ring is the fifth of them. Other threads jump over all of it.
_RECORD = tl.constexpr(f"""{{
    .reg .pred %kvtp; .reg .u32 %kvtt; .reg .u64 %kvta, %kvtb;
    mov.u32 $0, 0;
    mov.u32 %kvtt, %tid.x;
    setp.ne.u32 %kvtp, %kvtt, 0;
    @%kvtp bra KVT_OTHERS;
    and.b64 %kvta, $1, {TILE_MASK};
    cvt.u64.u32 %kvtb, $2;
    setp.lt.u64 %kvtp, %kvta, %kvtb;
    shr.u64 %kvtb, $1, {TILE_BITS};
    setp.lt.and.u64 %kvtp, %kvtb, $3, %kvtp;
    mad.lo.u64 %kvtb, %kvtb, 24, $4;
    cvt.u32.u64 %kvtt, %kvta;
    add.u32 %kvtt, %kvtt, $9;
    @%kvtp st.global.v2.u32 [%kvtb], {{$5, $6}};
    @%kvtp st.global.v2.u32 [%kvtb + 8], {{$7, $8}};
    @%kvtp st.global.v2.u32 [%kvtb + 16], {{%kvtt, $10}};
    KVT_OTHERS:
}}""")

# Operands after the two counts of ticks: the record's first three words, its address, and whether to write it.
_PUT = tl.constexpr(f"""{{{_FIRST_THREAD}
    setp.ne.and.b32 %kvtp, ${7 * _FEW}, 0, %kvtp;
    shl.b32 %kvtt, ${2 * _FEW}, 8;
    or.b32 %kvtt, %kvtt, ${_FEW};
    @%kvtp st.global.v4.u32 [${6 * _FEW}], {{${3 * _FEW}, ${4 * _FEW}, ${5 * _FEW}, %kvtt}};
    mov.u32 $0, 0;
}}""")
_PUT_CONSTRAINTS = tl.constexpr(",".join(["=&r"] * _FEW + ["r"] * 5 * _FEW + ["l"] * _FEW + ["r"] * _FEW))

# Triton hands the result of an atomic on one word to all threads through shared memory: all of them wait for it. And if
# a warp's threads had one address, ptxas would add once for all and hand the result around, which waits, too.
_RESERVE = tl.constexpr(f"""{{{_FIRST_THREAD}
    .reg .u64 %kvta;
    mad.wide.u32 %kvta, %kvtt, 8, $1;
    setp.ne.and.b32 %kvtp, $3, 0, %kvtp;
    mov.u64 $0, 0;
    @%kvtp atom.relaxed.gpu.global.add.u64 $0, [%kvta], $2;
}}""")


# Each thread has an address of its own here, too: for a warp's threads on one address ptxas would search the largest.
# Behind a branch, only the first thread reads the timer; under a predicate alone, all would.
_WINDOW = f"""{{{_FIRST_THREAD}
    .reg .u64 %kvta, %kvtn;
    mov.u32 $0, 0;
    mad.wide.u32 %kvta, %kvtt, 8, $1;
    setp.ne.and.b32 %kvtp, $2, 0, %kvtp;
    @!%kvtp bra KVT_OTHERS;
    mov.u32 %kvtt, %smid;
    and.b32 %kvtt, %kvtt, {WINDOW_WAYS - 1};
    mad.wide.u32 %kvta, %kvtt, {8 * WAY_WORDS}, %kvta;
    mov.u64 %kvtn, %globaltimer;
    COMPLEMENT
    red.relaxed.gpu.global.max.u64 [%kvta], %kvtn;
    KVT_OTHERS:
}}"""
_ENTER = tl.constexpr(_WINDOW.replace("COMPLEMENT", "not.b64 %kvtn, %kvtn;"))
_LEAVE = tl.constexpr(_WINDOW.replace("COMPLEMENT", ""))


@triton.jit
def kvt_enter(word, wanted):
    """Lower a window's first time, kept as its complement, to now, if `wanted`: the program's first thread does."""
    tl.inline_asm_elementwise(
        _ENTER, "=&r,l,r", [word.to(tl.int64), wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def kvt_leave(word, wanted):
    """Raise a window's last time to now, if `wanted`: the program's first thread does."""
    tl.inline_asm_elementwise(
        _LEAVE, "=&r,l,r", [word.to(tl.int64), wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def kvt_reserve(counter, amount, wanted):
    """Add to a counter in memory, if `wanted`; what it was, in the program's first thread only (0 elsewhere)."""
    return tl.inline_asm_elementwise(
        _RESERVE,
        "=&l,l,l,r",
        [counter.to(tl.int64), amount, wanted.to(tl.int32)],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def kvt_now():
    """The timer's low word, now."""
    return tl.inline_asm_elementwise("mov.u32 $0, %globaltimer_lo;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def kvt_bits(value):
    """A floating-point value as what the calls below wait for."""
    return value.to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def kvt_ticks(bits, since):
    """Ticks since `since` when `bits` is there, at most 255, in the element of the first thread; 0 elsewhere."""
    since = tl.broadcast_to(since, bits.shape)
    return tl.inline_asm_elementwise(
        _TICKS, _TICKS_CONSTRAINTS, [bits, since], dtype=tl.int32, is_pure=False, pack=_TICKS_PACK
    )


@triton.jit
def kvt_behind(bits):
    """Hold what follows, the calls of this file, behind the instructions that make `bits`: they are issued first."""
    tl.inline_asm_elementwise(_BEHIND, _BEHIND_CONSTRAINTS, [bits], dtype=tl.int32, is_pure=False, pack=_TICKS_PACK)


@triton.jit
def kvt_mark(since, key, pair, end, address):
    """Store two bytes at `address + 2 * place`: the ticks from `since` to `key`, and those from there to now.

    `place` is the lower word of `pair`. Nothing is stored from `end` on. The address is put together here and not
    before the loop, where the program would wait for the atomic that `pair` comes from.

    Returns `key` as it can be told from the bytes, in whole ticks from `since`.
    """
    return tl.inline_asm_elementwise(
        _MARK, "=&r,r,r,l,r,l", [since, key, pair, end, address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def kvt_record(pair, end, programs, first_program, start, total, who, of, place_0, more):
    """Store a program's record, of six words, if its place in `pair` is before `end` and its number below `programs`.

    The first thread does. `place_0` and the place make the fifth word.
    """
    tl.inline_asm_elementwise(
        _RECORD,
        "=&r,l,r,l,l,r,r,r,r,r,r",
        [pair, end, programs, first_program, start, total, who, of, place_0, more],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def kvt_put(ticks, more, first, second, third, address, ok):
    """Store a record of four words at `address`, if `ok`: three, and one of `ticks` and, shifted by 8, `more`."""
    first, second = tl.broadcast_to(first, ticks.shape), tl.broadcast_to(second, ticks.shape)
    third, address = tl.broadcast_to(third, ticks.shape), tl.broadcast_to(address, ticks.shape)
    ok = tl.broadcast_to(ok.to(tl.int32), ticks.shape)
    tl.inline_asm_elementwise(
        _PUT,
        _PUT_CONSTRAINTS,
        [ticks, more, first, second, third, address, ok],
        dtype=tl.int32,
        is_pure=False,
        pack=_TICKS_PACK,
    )


@triton.jit
def kvt_load(pointer):
    """A word of memory, asked for where this stands: a compiler moves plain loads to where they would be waited for.

    Of the narrowest scope: with a volatile one, cache writes of 256 tokens took twice as long.
    """
    return tl.inline_asm_elementwise(
        "ld.relaxed.cta.global.b64 $0, [$1];", "=l,l", [pointer.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1
    )
