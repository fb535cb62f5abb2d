"""Sealed rows in a running softmax: each live subblock is decoded to halves, still rotated."""

from __future__ import annotations

import triton
import triton.language as tl

from omni_cuda.kernels.sealed_codes import key_codes, meanings, value_codes
from omni_cuda.kernels.sealed_unpack import e2m1, half_pair, packed


@triton.jit
def walk(
    q, factor, sealed, levels, rows, order, bias, mine, begin, end, first, peak, total, mixed,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, bits: tl.constexpr, size: tl.constexpr,
    key_bytes: tl.constexpr, value_bytes: tl.constexpr, values_at: tl.constexpr,
    ranges_at: tl.constexpr, key_scales_at: tl.constexpr, value_scales_at: tl.constexpr,
    exponents_at: tl.constexpr, checked: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """Take the subblocks of rows ``begin`` to ``end`` into the running softmax."""
    padded: tl.constexpr = q.shape[1]
    blocks: tl.constexpr = (head_dim + 31) // 32
    cell = tl.arange(0, 32)
    d = tl.arange(0, padded)
    used = d < head_dim
    for each in range(begin * 2, end * 2):
        # A row: two subblocks, then the live cells of each.
        entry = rows + each // 2 * 4 + each % 2
        subblock = tl.load(entry)
        alive = ((tl.load(entry + 2) >> cell) & 1) != 0
        page = sealed + ((subblock >> 1) - first).to(tl.int64) * (kv_heads * size)
        half = subblock & 1
        ranges = tl.load(page + ranges_at + half * head_dim + d, mask=used, other=0).to(tl.int32)
        about = page + exponents_at + half * (2 * blocks) + d // 32 * 2
        both = tl.load(about.to(tl.pointer_type(tl.int16)), mask=used, other=0).to(tl.int32)
        offset = e2m1(ranges) * ((both & 0xFF) << 23).to(tl.float32, bitcast=True)
        span = e2m1(ranges >> 4) * ((both & 0xFF00) << 15).to(tl.float32, bitcast=True)
        words = (page + half * key_bytes).to(tl.pointer_type(tl.int32))
        codes = key_codes(words, head_dim, padded, bits)
        offset, span = half_pair(packed(offset, span, exact)[:, None])
        k = offset + span * meanings(codes, levels, 0, bits)
        scores = tl.dot(q, k) * factor[:, None]
        scales = (page + key_scales_at + half * 64).to(tl.pointer_type(tl.float16))
        scores *= tl.load(scales + cell).to(tl.float32)[None, :]
        if bias is not None:
            added = tl.load(bias + subblock * 32 + cell, mask=alive, other=0.0)
            scores += added[None, :] * 1.4426950408889634
        live = alive[None, :]
        if checked:
            age = tl.load(order + subblock * 32 + cell, mask=alive, other=0)
            live = live & (age[None, :] <= mine[:, None])
        scores = tl.where(live, scores, float("-inf"))
        top = tl.maximum(peak, tl.max(scores, axis=1))
        # A query that has seen nothing yet peaks at -inf; any finite stand-in keeps its weights 0.
        stand_in = tl.where(top == float("-inf"), 0.0, top)
        weights = tl.math.exp2(scores - stand_in[:, None])
        shrink = tl.math.exp2(peak - stand_in)
        total = total * shrink + tl.sum(weights, axis=1)
        scales = (page + value_scales_at + half * 64).to(tl.pointer_type(tl.float16))
        # A cell that is not alive may hold anything.
        weights *= tl.where(alive, tl.load(scales + cell), 0.0).to(tl.float32)[None, :]
        words = (page + values_at + half * value_bytes).to(tl.pointer_type(tl.int32))
        codes = value_codes(words, head_dim, padded, bits)
        v = meanings(codes, levels, 2**bits, bits)
        mixed = tl.dot(weights.to(tl.float16), tl.trans(v), acc=mixed * shrink[:, None])
        peak = top
    return peak, total, mixed
