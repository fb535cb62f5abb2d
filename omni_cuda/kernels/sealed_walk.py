"""Sealed rows in a running softmax: two live subblocks at once, decoded to halves, still rotated.

A tile is 64 cells wide. Narrower ones would be stored in shared memory in a layout of which
Triton 3.6 and later read too much on Hopper (github.com/triton-lang/triton, number 11366).
"""

from __future__ import annotations

import triton
import triton.language as tl

from omni_cuda.kernels.sealed_codes import key_codes, meanings, value_codes
from omni_cuda.kernels.sealed_unpack import e2m1, half_pair, packed


@triton.jit
def walk(
    q, factor, sealed, levels, rows, bias, begin, end, first,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, bits: tl.constexpr, size: tl.constexpr,
    key_bytes: tl.constexpr, value_bytes: tl.constexpr, values_at: tl.constexpr,
    ranges_at: tl.constexpr, key_scales_at: tl.constexpr, value_scales_at: tl.constexpr,
    exponents_at: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """A softmax over the cells of rows ``begin`` to ``end``: its peak, sum and mixed codes."""
    block: tl.constexpr = q.shape[0]
    padded: tl.constexpr = q.shape[1]
    blocks: tl.constexpr = (head_dim + 31) // 32
    each = tl.arange(0, 2)
    cell = tl.arange(0, 64)
    pair = tl.arange(0, 32)
    d = tl.arange(0, padded)
    used = (d < head_dim)[:, None]
    words = sealed.to(tl.pointer_type(tl.int32))
    halves = sealed.to(tl.pointer_type(tl.float16))
    peak = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    mixed = tl.zeros([block, padded], tl.float32)
    # Two subblocks, and the live cells of each. They are read a row ahead, so that what is loaded
    # by them need not wait; a row more than there are can be read.
    sub0, sub1 = tl.load(rows + begin * 4), tl.load(rows + begin * 4 + 1)
    live0, live1 = tl.load(rows + begin * 4 + 2), tl.load(rows + begin * 4 + 3)
    for row in range(begin, end):
        half0, half1 = sub0 & 1, sub1 & 1
        page0 = ((sub0 >> 1) - first).to(tl.int64) * (kv_heads * size)
        page1 = ((sub1 >> 1) - first).to(tl.int64) * (kv_heads * size)
        alive = ((tl.where(cell < 32, live0, live1) >> (cell % 32)) & 1) != 0
        place = tl.where(cell < 32, sub0, sub1) * 32 + cell % 32
        live0, live1 = tl.load(rows + row * 4 + 6), tl.load(rows + row * 4 + 7)
        sub0, sub1 = tl.load(rows + row * 4 + 4), tl.load(rows + row * 4 + 5)
        # Ranges [padded, 2].
        at0, at1 = page0 + half0 * head_dim, page1 + half1 * head_dim
        at = tl.where(each == 0, at0, at1)[None, :] + ranges_at + d[:, None]
        ranges = tl.load(sealed + at, mask=used, other=0).to(tl.int32)
        at0, at1 = page0 + half0 * (2 * blocks), page1 + half1 * (2 * blocks)
        at = tl.where(each == 0, at0, at1)[None, :] + exponents_at + (d // 32 * 2)[:, None]
        both = tl.load((sealed + at).to(tl.pointer_type(tl.int16)), mask=used, other=0)
        both = both.to(tl.int32)
        offset = e2m1(ranges) * ((both & 0xFF) << 23).to(tl.float32, bitcast=True)
        span = e2m1(ranges >> 4) * ((both & 0xFF00) << 15).to(tl.float32, bitcast=True)
        offset, span = half_pair(packed(offset, span, exact)[:, :, None])
        at0, at1 = page0 // 4 + half0 * (key_bytes // 4), page1 // 4 + half1 * (key_bytes // 4)
        codes = key_codes(words, tl.where(cell < 32, at0, at1) + cell % 32, head_dim, padded, bits)
        codes = tl.reshape(meanings(codes, levels, 0, bits), (padded, 2, 32))
        k = tl.reshape(offset + span * codes, (padded, 64))
        scores = tl.dot(q, k) * factor[:, None]
        at0, at1 = page0 // 2 + half0 * 32, page1 // 2 + half1 * 32
        scale_at = tl.where(cell < 32, at0, at1) + cell % 32
        scales = tl.load(halves + key_scales_at // 2 + scale_at).to(tl.float32)
        scores *= scales[None, :]
        if bias is not None:
            added = tl.load(bias + place, mask=alive, other=0.0)
            scores += added[None, :] * 1.4426950408889634
        scores = tl.where(alive[None, :], scores, float("-inf"))
        top = tl.maximum(peak, tl.max(scores, axis=1))
        # A query that has seen nothing yet peaks at -inf; any finite stand-in keeps its weights 0.
        stand_in = tl.where(top == float("-inf"), 0.0, top)
        weights = tl.math.exp2(scores - stand_in[:, None])
        shrink = tl.math.exp2(peak - stand_in)
        total = total * shrink + tl.sum(weights, axis=1)
        # A cell that is not alive may hold anything.
        scales = tl.load(halves + value_scales_at // 2 + scale_at)
        weights *= tl.where(alive, scales, 0.0).to(tl.float32)[None, :]
        at0 = (page0 + values_at) // 4 + half0 * (value_bytes // 4)
        at1 = (page1 + values_at) // 4 + half1 * (value_bytes // 4)
        at = tl.where(pair < 16, at0, at1) + pair % 16
        v = meanings(value_codes(words, at, head_dim, padded, bits), levels, 2**bits, bits)
        mixed = tl.dot(weights.to(tl.float16), tl.trans(v), acc=mixed * shrink[:, None])
        peak = top
    return peak, total, mixed
