"""Reading the GPU's global timer inside a Triton kernel, at a moment that a value fixes.

The timer is read under a predicate that compares the value with one bit pattern, so the hardware has the value before
it reads, and no compiler can move the read forward. Only the program's first thread reads, and its first element of the
value is the one waited for. `%globaltimer_lo`: nanoseconds, low word, in steps of 32 ns on an H200.
"""

from __future__ import annotations

import triton
import triton.language as tl

_NEVER = "0x7fedcba9"  # a NaN that arithmetic does not produce

# Elements a thread hands to one piece of assembly. What it has less is padded, what it has more comes in a later piece.
_FEW = 4


def _read(value: int, since: int) -> str:
    """Ticks of 32 ns since `since` in register %kvtt, of thread 0, once `value` is there; %kvtp tells that thread."""
    return f"""
        .reg .pred %kvtp; .reg .u32 %kvtt;
        mov.u32 %kvtt, %tid.x;
        setp.eq.u32 %kvtp, %kvtt, 0;
        setp.ne.and.b32 %kvtp, ${value}, {_NEVER}, %kvtp;
        mov.u32 %kvtt, 0;
        @%kvtp mov.u32 %kvtt, %globaltimer_lo;
        @%kvtp sub.u32 %kvtt, %kvtt, ${since};
        shr.u32 %kvtt, %kvtt, 5;
        min.u32 %kvtt, %kvtt, 255;
    """


_TICKS = tl.constexpr("{" + _read(_FEW, 2 * _FEW) + "mov.u32 $0, %kvtt; }")
_TICKS_CONSTRAINTS = tl.constexpr(",".join(["=&r"] * _FEW + ["r"] * 2 * _FEW))
_TICKS_PACK = tl.constexpr(_FEW)

# Operands after the value, `since` and ticks: a place, the last place there is room for, and the address of place 0.
_MARK = tl.constexpr(
    "{"
    + _read(_FEW, 2 * _FEW)
    + f"""
        .reg .s64 %kvta;
        setp.ge.and.s64 %kvtp, ${5 * _FEW}, ${4 * _FEW}, %kvtp;
        shl.b32 %kvtt, %kvtt, 8;
        or.b32 %kvtt, %kvtt, ${3 * _FEW};
        shl.b64 %kvta, ${4 * _FEW}, 1;
        add.s64 %kvta, %kvta, ${6 * _FEW};
        @%kvtp st.global.u16 [%kvta], %kvtt;
        mov.u32 $0, 0;
    }}"""
)
_MARK_CONSTRAINTS = tl.constexpr(",".join(["=&r"] * _FEW + ["r"] * 3 * _FEW + ["l"] * 3 * _FEW))


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
def kvt_mark(bits, since, ticks, place, last_place, address):
    """Store two bytes at `address + 2 * place`: `ticks`, and the ticks since `since` when `bits` is there.

    Nothing is stored beyond `last_place`. The address is put together here and not before the loop, where the program
    would wait for the atomic that `place` comes from.
    """
    since, ticks = tl.broadcast_to(since, bits.shape), tl.broadcast_to(ticks, bits.shape)
    place, last_place = tl.broadcast_to(place, bits.shape), tl.broadcast_to(last_place, bits.shape)
    address = tl.broadcast_to(address, bits.shape)
    tl.inline_asm_elementwise(
        _MARK,
        _MARK_CONSTRAINTS,
        [bits, since, ticks, place, last_place, address],
        dtype=tl.int32,
        is_pure=False,
        pack=_TICKS_PACK,
    )
