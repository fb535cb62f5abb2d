"""Scores, weights and sums of a subblock a warp, on tensor cores."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from omni_cuda.kernels.sealed_operands import (
    all_codes,
    as_pair,
    even_and_odd,
    key_ranges,
    times,
    transposed,
)


@gluon.jit
def _by_row(x, to: gl.constexpr):
    """``[W, 2 g + x]`` as ``[W, 8 x + g]``, of the rows of a product."""
    w: gl.constexpr = x.shape[0]
    x = gl.permute(gl.reshape(x, (w, 8, 2)), (0, 2, 1))
    return gl.convert_layout(gl.reshape(x, (w, 16)), to)


@gluon.jit
def tile_scores(
    tile, occupied, bias, q, factor, bits: gl.constexpr, mma: gl.constexpr, pl: gl.constexpr,
):  # fmt: skip
    """Scores ``[W, 16, heads]`` of cells ``4 (c % 8) + 2 (c // 8)``, those of the next, scales."""
    keys, upper, ranges, exponents, key_scales, value_scales, e0, e1 = tile
    w: gl.constexpr = keys.shape[0]
    k: gl.constexpr = q.shape[1]
    heads: gl.constexpr = q.shape[2]
    al: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bl: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    rows: gl.constexpr = gl.SliceLayout(2, mma)
    spans, offsets = key_ranges(ranges, exponents, bits, pl)
    spans = gl.convert_layout(spans, gl.SliceLayout(2, bl))
    turned = times(q, gl.expand_dims(spans, 2))
    none = gl.full((w, 16, heads), 0.0, gl.float32, mma)
    offsets = gl.convert_layout(offsets, gl.SliceLayout(1, al))
    offsets, _ = gl.broadcast(gl.expand_dims(offsets, 1), gl.full((w, 16, k), 0.0, gl.float16, al))
    ground = mma_v2(offsets, q, none) * (factor * (2.0**-16))
    first, second = even_and_odd(keys)
    first_upper, second_upper = even_and_odd(upper)
    # [W, J, I, 16, 2] to [W, 16, K]
    a = gl.reshape(gl.permute(all_codes(first, first_upper, bits), (0, 3, 1, 2, 4)), (w, 16, k))
    some = mma_v2(gl.convert_layout(a, al), turned, none)
    a = gl.reshape(gl.permute(all_codes(second, second_upper, bits), (0, 3, 1, 2, 4)), (w, 16, k))
    others = mma_v2(gl.convert_layout(a, al), turned, none)
    n0, n1 = gl.split(as_pair(_by_row(key_scales, rows)))
    v0, v1 = gl.split(as_pair(_by_row(value_scales, rows)))
    c = gl.arange(0, 16, gl.SliceLayout(0, rows))
    cell = (c % 8 * 4 + c // 8 * 2)[None, :]
    shifted = gl.convert_layout(occupied, gl.SliceLayout(1, rows))[:, None] >> cell
    live0 = (shifted & 1) != 0
    live1 = (shifted & 2) != 0
    some = gl.fma(some, factor, ground) * gl.expand_dims(n0.to(gl.float32), 2)
    others = gl.fma(others, factor, ground) * gl.expand_dims(n1.to(gl.float32), 2)
    if bias is not None:
        some += gl.expand_dims(_by_row(e0, rows), 2) * 1.4426950408889634
        others += gl.expand_dims(_by_row(e1, rows), 2) * 1.4426950408889634
    some = gl.where(gl.expand_dims(live0, 2), some, float("-inf"))
    others = gl.where(gl.expand_dims(live1, 2), others, float("-inf"))
    v0 = gl.where(live0, v0.to(gl.float32), 0.0)
    v1 = gl.where(live1, v1.to(gl.float32), 0.0)
    return some, others, v0, v1


@gluon.jit
def weighted(w0, w1, v0, v1, mma: gl.constexpr):
    """Weights times scales as halves ``[W, 32, heads]``, cells as the values' pairs lie."""
    w: gl.constexpr = w0.shape[0]
    heads: gl.constexpr = w0.shape[2]
    x0 = transposed((w0 * gl.expand_dims(v0, 2)).to(gl.float16))
    x1 = transposed((w1 * gl.expand_dims(v1, 2)).to(gl.float16))
    # What stands at row 8 x + i, column 8 n + g is of head 8 n + i and cell 4 g + 2 x + r.
    n: gl.constexpr = heads // 8
    both = gl.reshape(gl.join(x0, x1), (w, 2, 8, n, 8, 2))
    both = gl.permute(both, (0, 1, 5, 4, 3, 2))
    both = gl.reshape(both, (w, 32, heads))
    return gl.convert_layout(both, gl.DotOperandLayout(1, mma, 2))


@gluon.jit
def mix(mixed, tile, p, bits: gl.constexpr, mma: gl.constexpr):
    """Values added, ``[W, (j, o), heads]``."""
    values, upper = tile
    w: gl.constexpr = values.shape[0]
    o: gl.constexpr = values.shape[1]
    # [W, J, O, (a, m), 2] to [W, (J, O), (m, a, half)]
    codes = all_codes(values, upper, bits)
    j: gl.constexpr = codes.shape[1]
    codes = gl.reshape(codes, (w, j, o, 4, 4, 2))
    codes = gl.reshape(gl.permute(codes, (0, 1, 2, 4, 3, 5)), (w, j * o, 32))
    return mma_v2(gl.convert_layout(codes, gl.DotOperandLayout(0, mma, 2)), p, mixed)


@gluon.jit
def rotated_queries(
    queries, place, there, head_dim: gl.constexpr, padded: gl.constexpr, bits: gl.constexpr,
    warps: gl.constexpr, heads: gl.constexpr, mma: gl.constexpr,
):  # fmt: skip
    """Queries by Hadamard, ``float32[W, K, heads]`` in the order of places.

    By a matrix of 16 on the low bits of a channel, then sums and differences of whole tiles.
    """
    al: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bl: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    parts: gl.constexpr = padded // 16
    n = gl.arange(0, parts * heads, gl.SliceLayout(0, gl.SliceLayout(1, bl)))[None, None, :]
    d = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, bl)))[None, :, None]
    each = gl.arange(0, warps, gl.SliceLayout(1, gl.SliceLayout(2, bl)))[:, None, None]
    channel = n // heads * 16 + d
    used = (n % heads < there) & (channel < head_dim)
    q = gl.load(queries + (place + n % heads) * head_dim + channel + each * 0, mask=used, other=0.0)
    row = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, al)))[None, :, None]
    column = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, al)))[None, None, :]
    each = gl.arange(0, warps, gl.SliceLayout(1, gl.SliceLayout(2, al)))[:, None, None]
    both = (row & column) + each * 0
    both = both ^ (both >> 2)
    both = both ^ (both >> 1)
    signs = gl.where((both & 1) != 0, -1.0, 1.0).to(q.dtype)
    none = gl.full((warps, 16, parts * heads), 0.0, gl.float32, mma)
    x = mma_v2(signs, q, none)
    # [W, low, parts, heads] to [W, low, heads, parts]
    x = gl.permute(gl.reshape(x, (warps, 16, parts, heads)), (0, 1, 3, 2))
    block: gl.constexpr = head_dim & -head_dim
    if block >= 32:
        x = _butterfly(x, 1)
    if block >= 64:
        x = _butterfly(x, 2)
    if block >= 128:
        x = _butterfly(x, 4)
    x = x * (block**-0.5)
    # A channel is (i, j, half), whichever its low bits are.
    j: gl.constexpr = 4 if bits == 4 else 8
    x = gl.permute(x, (0, 3, 1, 2))
    x = gl.reshape(x, (warps, padded // (2 * j), j, 2, heads))
    x = gl.reshape(gl.permute(x, (0, 2, 1, 3, 4)), (warps, padded, heads))
    return gl.convert_layout(x, bl)


@gluon.jit
def _butterfly(x, stride: gl.constexpr):
    w: gl.constexpr = x.shape[0]
    heads: gl.constexpr = x.shape[2]
    parts: gl.constexpr = x.shape[3]
    x = gl.reshape(x, (w, 16, heads, parts // (2 * stride), 2, stride))
    a, b = gl.split(gl.permute(x, (0, 1, 2, 3, 5, 4)))
    x = gl.permute(gl.join(a + b, a - b), (0, 1, 2, 3, 5, 4))
    return gl.reshape(x, (w, 16, heads, parts))
