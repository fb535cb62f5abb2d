"""Words of sealed pages as operands of tensor cores, codes as denormal halves."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def as_pair(bits):
    """The halves of ``int32``, last in the shape."""
    low = (bits & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True)
    high = ((bits >> 16) & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True)
    return gl.join(low, high)


@gluon.jit
def times(a, b):
    """Halves times halves, two an instruction."""
    return gl.inline_asm_elementwise(
        "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], gl.float16, True, 2
    )


@gluon.jit
def transposed(x):
    """Each 8 x 8 block of halves transposed, in the layout of a product."""
    return gl.inline_asm_elementwise(
        "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r", [x], gl.float16, False, 2
    )


@gluon.jit
def _place(words, upper, place: gl.constexpr, bits: gl.constexpr):
    """Codes at a place, as halves behind the shape."""
    low: gl.constexpr = 2 if bits == 3 else bits
    near: gl.constexpr = 8 // low
    mask: gl.constexpr = ((1 << low) - 1) * 0x10001 << (place % near * low)
    pairs = (words >> (place // near * 8)) & mask
    if bits == 3:
        to: gl.constexpr = place % 4 * 2 + 2
        moved = upper << (to - place) if to >= place else upper >> (place - to)
        pairs |= moved & (0x10001 << to)
    return as_pair(pairs)


@gluon.jit
def all_codes(words, upper, bits: gl.constexpr):
    """All codes of ``[W, A, B]``: halves ``[W, J, A, B, 2]``."""
    x = gl.join(_place(words, upper, 0, bits), _place(words, upper, 1, bits))
    y = gl.join(_place(words, upper, 2, bits), _place(words, upper, 3, bits))
    x = gl.join(x, y)
    if bits != 4:
        y = gl.join(_place(words, upper, 4, bits), _place(words, upper, 5, bits))
        z = gl.join(_place(words, upper, 6, bits), _place(words, upper, 7, bits))
        y = gl.join(y, z)
        x = gl.join(x, y)
        # [W, A, B, 2, bit 0, bit 1, bit 2 of the place]
        x = gl.permute(x, (0, 6, 5, 4, 1, 2, 3))
        x = gl.reshape(x, (x.shape[0], 8, x.shape[4], x.shape[5], 2))
    else:
        x = gl.permute(x, (0, 5, 4, 1, 2, 3))
        x = gl.reshape(x, (x.shape[0], 4, x.shape[3], x.shape[4], 2))
    return x


@gluon.jit
def even_and_odd(words):
    """``[W, I, 32]`` as ``[W, I, 16]`` of cells ``4 g + 2 x`` at ``8 x + g``, and the next."""
    w: gl.constexpr = words.shape[0]
    i: gl.constexpr = words.shape[1]
    apart = gl.permute(gl.reshape(words, (w, i, 8, 2, 2)), (0, 1, 3, 2, 4))
    return gl.split(gl.reshape(apart, (w, i, 16, 2)))


@gluon.jit
def _scale(exponent, less):
    """Powers of two, exponent bytes, as pairs of halves; 0 where one has none so small."""
    at = gl.minimum(gl.maximum(exponent - less, 0), 30)
    return at * 0x04000400


@gluon.jit
def _pair_ranges(two, o_scale, s_scale, minus_middle):
    """Spans, and offsets of code 0, of two channels: pairs of halves."""
    # A byte of ranges in each half.
    apart = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, 0, 0x4140;", "=r,r", [two], gl.int32, True, 1
    )
    span = (apart << 5) & 0x0E000E00
    offset = ((apart << 9) & 0x0E000E00) | ((apart & 0x00080008) << 12)
    return gl.inline_asm_elementwise(
        "mul.rn.f16x2 $0, $2, $4; mul.rn.f16x2 $1, $3, $5; fma.rn.f16x2 $1, $0, $6, $1;",
        "=&r,=&r,r,r,r,r,r",
        [span, offset, s_scale, o_scale, minus_middle],
        (gl.int32, gl.int32),
        True,
        1,
    )


@gluon.jit
def key_ranges(ranges, exponents, bits: gl.constexpr, to: gl.constexpr):
    """Halves ``[W, K]`` in the order of places: spans, and offsets of code 0.

    Offsets are times ``2**-8`` over the power of their place, and as exact as others.
    """
    w: gl.constexpr = ranges.shape[0]
    k: gl.constexpr = ranges.shape[1] * ranges.shape[2] * 4
    low: gl.constexpr = 2 if bits == 3 else bits
    # A half's exponent is 15 up, and ranges come times 2**-14.
    none: gl.constexpr = 127 - 15 - 14
    layout: gl.constexpr = ranges.type.layout
    quad = gl.arange(0, ranges.shape[2], gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    power = quad[None, None, :] * 2 % (8 // low) * low
    e = exponents.to(gl.int32)
    s_scale = _scale((e >> 8) & 0xFF, none)
    # -1.5, -3.5, -7.5, as a pair of halves, times 2**-8.
    middle: gl.constexpr = 0x3E00 if bits == 2 else (0x4300 if bits == 3 else 0x4780)
    first = (middle - 0x2000 + power * 0x400) * 0x10001 | 0x80008000 - (1 << 32)
    second = (middle - 0x2000 + (power + low) * 0x400) * 0x10001 | 0x80008000 - (1 << 32)
    s0, o0 = _pair_ranges(ranges, _scale(e & 0xFF, none + 8 - power), s_scale, first)
    o_scale = _scale(e & 0xFF, none + 8 - low - power)
    s1, o1 = _pair_ranges(ranges >> 16, o_scale, s_scale, second)
    # [W, i, quad, pair of the quad] to [W, (quad, pair), i]
    spans = gl.reshape(gl.permute(gl.join(s0, s1), (0, 2, 3, 1)), (w, k // 2))
    offsets = gl.reshape(gl.permute(gl.join(o0, o1), (0, 2, 3, 1)), (w, k // 2))
    spans = gl.convert_layout(spans, to)
    offsets = gl.convert_layout(offsets, to)
    return gl.reshape(as_pair(spans), (w, k)), gl.reshape(as_pair(offsets), (w, k))


@gluon.jit
def power_of(k, bits: gl.constexpr):
    """What the code at a place is to be multiplied by, but for ``2**24``."""
    low: gl.constexpr = 2 if bits == 3 else bits
    return ((127 - k % (8 // low) * low) << 23).to(gl.float32, bitcast=True)
