"""What sealed pages hold, as numbers in registers: codes, ranges, scales.

Codes stay where they lie in their words. A pair that is masked out of a word is a pair of denormal
halves, codes times a power of two that differs from place to place: it goes into what they are
multiplied by, once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_power(place, bits: tl.constexpr):
    """What a code at a place is to be multiplied by, but for ``2**24``: ``float32``."""
    low: tl.constexpr = 2 if bits == 3 else bits
    near: tl.constexpr = 8 // low
    return ((127 - place % near * low) << 23).to(tl.float32, bitcast=True)


@triton.jit
def code_pairs(words, upper, place, bits: tl.constexpr):
    """Pairs of codes at a place of ``int32`` words, as two denormal halves each.

    Args:
        words: the low plane, or the only one.
        upper: of 3 bits, the high plane's bits of the same places, one a place; else anything.
        place: 0 to 7, or of 4 bits 0 to 3.
        bits: of a code.
    """
    low: tl.constexpr = 2 if bits == 3 else bits
    # Places whose codes lie within a half's mantissa; the others are shifted down together.
    near: tl.constexpr = 8 // low
    mask: tl.constexpr = ((1 << low) - 1) * 0x10001
    pairs = (words >> (place // near * (near * low))) & (mask << (place % near * low))
    if bits == 3:
        moved = tl.where(place < 4, upper << (place + 2), (upper >> 2) << (place % 4))
        pairs |= moved & (0x40004 << (place % 4 * 2))
    return half_pair(pairs)


@triton.jit
def half_pair(bits):
    """The halves of ``int32``."""
    low = (bits & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = ((bits >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return low, high


@triton.jit
def packed(low, high, exact: tl.constexpr):
    """Two ``float32`` as the halves of an ``int32``.

    The assembly is said to have effects, so that the compiler does not compute it once for each
    thread that wants the result.
    """
    if exact:
        low = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
        high = high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
        found = (low & 0xFFFF) | (high << 16)
    else:
        found = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], tl.int32, False, 1
        )
    return found


@triton.jit
def e2m1(codes):
    """Numbers of 4 bits, the low ones of ``int32``, as ``float32``."""
    magnitude = ((codes & 7) << 22).to(tl.float32, bitcast=True) * 2.0**126
    return tl.where(codes & 8 != 0, -magnitude, magnitude)


@triton.jit
def product(a, b, exact: tl.constexpr):
    """Halves times halves, two an instruction where assembly can run."""
    if exact:
        found = a * b
    else:
        found = tl.inline_asm_elementwise(
            "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.float16, True, 2
        )
    return found
