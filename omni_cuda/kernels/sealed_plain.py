"""Decode attention over sealed pages with layouts left to the compiler; it runs interpreted too.

Codes are multiplied as they lie. A program takes one query's heads of one key head, and a share of
the listing's rows; each of its warps walks rows of its own. Scores come as cells by heads and
values as channels by heads, so that a group of up to eight heads fills a tensor core's tile.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_cuda.kernels.sealed_tiles import load, scores, value_codes, weighted
from omni_cuda.kernels.sealed_unpack import place_power


@triton.jit(do_not_specialize=["streams", "room", "first"])
def decode(
    queries,
    words,
    shorts,
    rotations,
    rows,
    segments,
    kinds,
    bias,
    key_means,
    found,
    sums,
    scale,
    streams,
    room,
    first,
    stream_quads,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    heads: tl.constexpr,
    bits: tl.constexpr,
    low: tl.constexpr,
    page_words: tl.constexpr,
    key_words: tl.constexpr,
    value_at: tl.constexpr,
    ranges_at: tl.constexpr,
    key_scales_at: tl.constexpr,
    value_scales_at: tl.constexpr,
    exponents_at: tl.constexpr,
    warps: tl.constexpr,
    far: tl.constexpr,
    exact: tl.constexpr,
    dependent: tl.constexpr,
):
    """See :func:`omni_cuda.kernels.sealed_attention.decode_sealed`."""
    share = tl.program_id(1)
    head = tl.program_id(0) % kv_heads
    stream = tl.program_id(0) // kv_heads
    middle: tl.constexpr = ((1 << bits) - 1) / 2
    begin = share * room
    end = tl.load(segments + share * 4 + 2)
    table = tl.load(segments + share * 4 + 3)
    kind = tl.load(kinds + share)
    words += stream.to(tl.int64) * stream_quads * 4
    shorts += stream.to(tl.int64) * stream_quads * 8
    warp = tl.arange(0, warps)
    row = begin + warp
    there = row < end
    sub0 = tl.load(rows + row * 4, mask=there, other=0)
    sub1 = tl.load(rows + row * 4 + 1, mask=there, other=0)
    tile0 = load(
        words, shorts, bias, sub0, there, head, first, kv_heads, head_dim, padded, bits, low,
        page_words, key_words, value_at, ranges_at, key_scales_at, value_scales_at, exponents_at,
        far, warps,
    )  # fmt: skip
    tile1 = load(
        words, shorts, bias, sub1, there, head, first, kv_heads, head_dim, padded, bits, low,
        page_words, key_words, value_at, ranges_at, key_scales_at, value_scales_at, exponents_at,
        far, warps,
    )  # fmt: skip
    live0 = tl.load(rows + row * 4 + 2, mask=there, other=0)
    live1 = tl.load(rows + row * 4 + 3, mask=there, other=0)
    row += warps
    there = row < end
    sub0 = tl.load(rows + row * 4, mask=there, other=0)
    sub1 = tl.load(rows + row * 4 + 1, mask=there, other=0)
    next0 = tl.load(rows + row * 4 + 2, mask=there, other=0)
    next1 = tl.load(rows + row * 4 + 3, mask=there, other=0)
    if dependent:
        gdc_wait()
        gdc_launch_dependents()
    # Queries, [padded, heads] in the order of places.
    j: tl.constexpr = 16 // low
    i: tl.constexpr = padded // j // 2
    line = tl.arange(0, heads)
    k = tl.arange(0, padded)
    channel = k // 2 % i * (2 * j) + k // (2 * i) * 2 + k % 2
    place = (table * streams + stream).to(tl.int64) * (kv_heads * group) + head * group + line
    used = (line < group)[None, :] & (channel < head_dim)[:, None]
    plain = tl.load(queries + place[None, :] * head_dim + channel[:, None], mask=used, other=0.0)
    block: tl.constexpr = head_dim & -head_dim
    turned = _rotated(queries, place, line < group, head_dim, padded, heads, block, j, i)
    largest = tl.max(tl.abs(turned), axis=0)
    largest = tl.where(largest == 0.0, 1.0, largest)
    turned = turned / largest[None, :]
    q = turned.to(tl.float16)
    placed = (turned * (16.0 * place_power(k // (2 * i), bits))[:, None]).to(tl.float16)
    factor = largest * scale * (2.0**20)
    peak = tl.full([warps, heads], float("-inf"), tl.float32)
    total = tl.zeros([warps, 16, heads], tl.float32)
    ones = tl.full([warps, 16, 32], 1.0, tl.float16)
    weight = tl.zeros([warps, 16, heads], tl.float32)
    mixed = tl.zeros([warps, padded, heads], tl.float32)
    for _ in range(begin, end, warps):
        later0 = load(
            words, shorts, bias, sub0, there, head, first, kv_heads, head_dim, padded, bits, low,
            page_words, key_words, value_at, ranges_at, key_scales_at, value_scales_at,
            exponents_at, far, warps,
        )  # fmt: skip
        later1 = load(
            words, shorts, bias, sub1, there, head, first, kv_heads, head_dim, padded, bits, low,
            page_words, key_words, value_at, ranges_at, key_scales_at, value_scales_at,
            exponents_at, far, warps,
        )  # fmt: skip
        row += warps
        there = row < end
        sub0 = tl.load(rows + row * 4, mask=there, other=0)
        sub1 = tl.load(rows + row * 4 + 1, mask=there, other=0)
        after0 = tl.load(rows + row * 4 + 2, mask=there, other=0)
        after1 = tl.load(rows + row * 4 + 3, mask=there, other=0)
        a0, a1, u0, u1 = scores(
            tile0, live0, bias, q, placed, factor, bits, low, warps, padded, heads, middle, exact
        )
        b0, b1, v0, v1 = scores(
            tile1, live1, bias, q, placed, factor, bits, low, warps, padded, heads, middle, exact
        )
        top = tl.max(tl.maximum(tl.maximum(a0, a1), tl.maximum(b0, b1)), axis=1)
        top = tl.maximum(peak, top)
        level = tl.where(top == float("-inf"), 0.0, top)
        shrink = tl.math.exp2(peak - level)
        a0 = tl.math.exp2(a0 - level[:, None, :])
        a1 = tl.math.exp2(a1 - level[:, None, :])
        b0 = tl.math.exp2(b0 - level[:, None, :])
        b1 = tl.math.exp2(b1 - level[:, None, :])
        total = total * shrink[:, None, :] + (a0 + a1 + (b0 + b1))
        p = weighted(a0, a1, u0, u1, warps, heads)
        weight = tl.dot(ones, p, acc=weight * shrink[:, None, :])
        mixed = tl.dot(
            value_codes(tile0[2], tile0[3], bits, warps, padded), p, acc=mixed * shrink[:, None, :]
        )
        p = weighted(b0, b1, v0, v1, warps, heads)
        weight = tl.dot(ones, p, acc=weight)
        mixed = tl.dot(value_codes(tile1[2], tile1[3], bits, warps, padded), p, acc=mixed)
        peak = top
        tile0 = later0
        tile1 = later1
        live0 = next0
        live1 = next1
        next0 = after0
        next1 = after1
    # One from the warps' parts.
    top = tl.max(peak, axis=0)
    level = tl.where(top == float("-inf"), 0.0, top)
    shares = tl.math.exp2(peak - level[None, :])
    total = tl.sum(tl.sum(total, axis=1) * shares, axis=0)
    weight = tl.sum(tl.max(weight, axis=1) * shares, axis=0)
    mixed = tl.sum(mixed * shares[:, None, :], axis=0)
    divisor = tl.where(total == 0.0, 1.0, total)
    d = tl.arange(0, padded)
    o: tl.constexpr = padded // j
    exact_power = place_power(d // o, bits) * (2.0**24)
    mixed = (mixed * exact_power[:, None] - (weight * middle)[None, :]) / divisor[None, :]
    # Back from the values' rotation: [padded, padded] by [padded, heads].
    turn = rotations + (kind * kv_heads + head) * (padded * padded)
    turn = tl.load(turn + d[:, None] * padded + d[None, :])
    out = tl.dot(turn, mixed.to(tl.float16))
    place = (share * streams + stream).to(tl.int64) * (kv_heads * group) + head * group + line
    seen = (line < group) & (top > float("-inf"))
    if key_means is not None:
        # All scores are as much higher: so is their log-sum-exp.
        mean = tl.load(key_means + head * head_dim + channel, channel < head_dim, 0.0)
        top += tl.sum(plain.to(tl.float32) * mean[:, None], axis=0) * scale
    target = found + place[None, :] * head_dim + d[:, None]
    tl.store(target, out, mask=seen[None, :] & (d < head_dim)[:, None])
    tl.store(sums + place, top + tl.log2(divisor), mask=line < group)


@triton.jit
def _rotated(queries, place, there, head_dim: tl.constexpr, padded: tl.constexpr,
             heads: tl.constexpr, block: tl.constexpr, j: tl.constexpr,
             i: tl.constexpr):  # fmt: skip
    """Queries by Hadamard, ``float32[padded, heads]`` in the order of places."""
    k = tl.arange(0, padded)
    channel = k // 2 % i * (2 * j) + k // (2 * i) * 2 + k % 2
    d = tl.arange(0, padded)
    q = tl.load(
        queries + place[None, :] * head_dim + d[:, None],
        mask=there[None, :] & (d < head_dim)[:, None],
        other=0.0,
    )
    both = channel[:, None] % block & d[None, :] % block
    both ^= both >> 4
    both ^= both >> 2
    both ^= both >> 1
    sign = tl.where(both & 1 != 0, -1.0, 1.0)
    same = channel[:, None] // block == d[None, :] // block
    matrix = tl.where(same, sign, 0.0).to(q.dtype)
    return tl.dot(matrix, q, input_precision="ieee") * (block**-0.5)
