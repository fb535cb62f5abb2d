"""Decode attention over sealed pages: words are loaded where tensor cores want their codes.

A warp walks rows of its own, a subblock after the other. Lane ``4 g + t`` loads four cells' words
``t`` of a key, and four pairs' words of channel ``g`` of a value: what it masks out of them are its
operands. Scores come as cells by heads; 8 x 8 blocks of weights are transposed within the warp.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from omni_cuda.kernels.sealed_loads import load_keys, load_values, page_of
from omni_cuda.kernels.sealed_operands import power_of
from omni_cuda.kernels.sealed_scores import mix, rotated_queries, tile_scores, weighted


@gluon.jit(do_not_specialize=["streams", "room", "first"])
def decode(
    queries, words, shorts, rotations, rows, segments, kinds, bias, key_means, found, sums, scale,
    streams, room, first, stream_quads,
    kv_heads: gl.constexpr, group: gl.constexpr, head_dim: gl.constexpr, padded: gl.constexpr,
    heads: gl.constexpr, bits: gl.constexpr, page_words: gl.constexpr, key_words: gl.constexpr,
    value_at: gl.constexpr, ranges_at: gl.constexpr, key_scales_at: gl.constexpr,
    value_scales_at: gl.constexpr, exponents_at: gl.constexpr, warps: gl.constexpr,
    far: gl.constexpr, dependent: gl.constexpr,
    kl: gl.constexpr, vl: gl.constexpr, rl: gl.constexpr, sl: gl.constexpr, pl: gl.constexpr,
):  # fmt: skip
    """See :func:`omni_cuda.kernels.sealed_attention.decode_sealed`."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [warps, 1, 1], [1, 16, 8])
    bl: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    al: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    one: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, mma))
    columns: gl.constexpr = gl.SliceLayout(1, mma)
    j: gl.constexpr = 4 if bits == 4 else 8
    middle: gl.constexpr = ((1 << bits) - 1) / 2
    share = gl.program_id(1)
    head = gl.program_id(0) % kv_heads
    stream = gl.program_id(0) // kv_heads
    begin = share * room
    end = gl.load(segments + share * 4 + 2)
    table = gl.load(segments + share * 4 + 3)
    kind = gl.load(kinds + share)
    words += stream.to(gl.int64) * stream_quads * 4
    shorts += stream.to(gl.int64) * stream_quads * 8
    row = begin + gl.arange(0, warps, one)
    there = row < end
    sub0 = gl.load(rows + row * 4, mask=there, other=0)
    sub1 = gl.load(rows + row * 4 + 1, mask=there, other=0)
    live0 = gl.load(rows + row * 4 + 2, mask=there, other=0)
    live1 = gl.load(rows + row * 4 + 3, mask=there, other=0)
    at0 = page_of(sub0, there, head, first, kv_heads, page_words, far)
    at1 = page_of(sub1, there, head, first, kv_heads, page_words, far)
    keys0 = load_keys(
        words, shorts, bias, sub0, at0, head_dim, padded, bits, key_words, ranges_at, key_scales_at,
        value_scales_at, exponents_at, kl, rl, sl,
    )  # fmt: skip
    keys1 = load_keys(
        words, shorts, bias, sub1, at1, head_dim, padded, bits, key_words, ranges_at, key_scales_at,
        value_scales_at, exponents_at, kl, rl, sl,
    )  # fmt: skip
    values0 = load_values(words, sub0, at0, head_dim, padded, bits, value_at, vl)
    values1 = load_values(words, sub1, at1, head_dim, padded, bits, value_at, vl)
    row += warps
    there = row < end
    sub0 = gl.load(rows + row * 4, mask=there, other=0)
    sub1 = gl.load(rows + row * 4 + 1, mask=there, other=0)
    next0 = gl.load(rows + row * 4 + 2, mask=there, other=0)
    next1 = gl.load(rows + row * 4 + 3, mask=there, other=0)
    if dependent:
        _wait()
    place = (table * streams + stream).to(gl.int64) * (kv_heads * group) + head * group
    turned = rotated_queries(queries, place, group, head_dim, padded, bits, warps, heads, mma)
    largest = gl.max(gl.abs(turned), axis=1)
    largest = gl.where(largest == 0.0, 1.0, largest)
    turned = turned / gl.expand_dims(largest, 1)
    k = gl.arange(0, padded, gl.SliceLayout(0, gl.SliceLayout(2, bl)))[None, :, None]
    q = (turned * (16.0 * power_of(k // (padded // j), bits))).to(gl.float16)
    largest = gl.convert_layout(largest, columns)
    factor = gl.expand_dims(largest * scale * (2.0**20), 1)
    peak = gl.full((warps, heads), float("-inf"), gl.float32, columns)
    total = gl.full((warps, 16, heads), 0.0, gl.float32, mma)
    ones = gl.full((warps, 16, 32), 1.0, gl.float16, al)
    weight = gl.full((warps, 16, heads), 0.0, gl.float32, mma)
    mixed = gl.full((warps, padded, heads), 0.0, gl.float32, mma)
    for _ in range(begin, end, warps):
        # What is read of the next row takes the place of what has been used of this one.
        at0 = page_of(sub0, there, head, first, kv_heads, page_words, far)
        at1 = page_of(sub1, there, head, first, kv_heads, page_words, far)
        a0, a1, u0, u1 = tile_scores(keys0, live0, bias, q, factor, bits, mma, pl)
        keys0 = load_keys(
            words, shorts, bias, sub0, at0, head_dim, padded, bits, key_words, ranges_at,
            key_scales_at, value_scales_at, exponents_at, kl, rl, sl,
        )  # fmt: skip
        b0, b1, v0, v1 = tile_scores(keys1, live1, bias, q, factor, bits, mma, pl)
        keys1 = load_keys(
            words, shorts, bias, sub1, at1, head_dim, padded, bits, key_words, ranges_at,
            key_scales_at, value_scales_at, exponents_at, kl, rl, sl,
        )  # fmt: skip
        top = gl.max(gl.maximum(gl.maximum(a0, a1), gl.maximum(b0, b1)), axis=1)
        top = gl.maximum(peak, top)
        level = gl.where(top == float("-inf"), 0.0, top)
        shrink = gl.expand_dims(gl.exp2(peak - level), 1)
        level = gl.expand_dims(level, 1)
        a0 = gl.exp2(a0 - level)
        a1 = gl.exp2(a1 - level)
        b0 = gl.exp2(b0 - level)
        b1 = gl.exp2(b1 - level)
        total = total * shrink + (a0 + a1 + (b0 + b1))
        peak = top
        p = weighted(a0, a1, u0, u1, mma)
        weight = mma_v2(ones, p, weight * shrink)
        mixed = mix(mixed * shrink, values0, p, bits, mma)
        values0 = load_values(words, sub0, at0, head_dim, padded, bits, value_at, vl)
        p = weighted(b0, b1, v0, v1, mma)
        weight = mma_v2(ones, p, weight)
        mixed = mix(mixed, values1, p, bits, mma)
        values1 = load_values(words, sub1, at1, head_dim, padded, bits, value_at, vl)
        live0 = next0
        live1 = next1
        row += warps
        there = row < end
        sub0 = gl.load(rows + row * 4, mask=there, other=0)
        sub1 = gl.load(rows + row * 4 + 1, mask=there, other=0)
        next0 = gl.load(rows + row * 4 + 2, mask=there, other=0)
        next1 = gl.load(rows + row * 4 + 3, mask=there, other=0)
    # Back from the values' rotation: [padded, padded] by [padded, heads].
    flat: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])
    fa: gl.constexpr = gl.DotOperandLayout(0, flat, 8)
    fb: gl.constexpr = gl.DotOperandLayout(1, flat, 8)
    over: gl.constexpr = gl.SliceLayout(0, fb)
    d = gl.arange(0, padded, gl.SliceLayout(0, fa))[None, :]
    e = gl.arange(0, padded, gl.SliceLayout(1, fa))[:, None]
    turn = rotations + (kind * kv_heads + head) * (padded * padded)
    turn = gl.load(turn + e * padded + d)
    # One from the warps' parts.
    top = gl.max(peak, axis=0)
    level = gl.where(top == float("-inf"), 0.0, top)
    shares = gl.exp2(peak - gl.expand_dims(level, 0))
    total = gl.sum(gl.sum(total, axis=1) * shares, axis=0)
    weight = gl.sum(gl.max(weight, axis=1) * shares, axis=0)
    mixed = gl.sum(mixed * gl.expand_dims(shares, 1), axis=0)
    total = gl.where(total == 0.0, 1.0, total)
    divisor = gl.convert_layout(total, over)[None, :]
    weight = gl.convert_layout(weight * middle, over)[None, :]
    d = gl.arange(0, padded, gl.SliceLayout(1, fb))[:, None]
    mixed = gl.convert_layout(mixed, fb) * (power_of(d // (padded // j), bits) * (2.0**24))
    mixed = ((mixed - weight) / divisor).to(gl.float16)
    out = mma_v2(turn, mixed, gl.full((padded, heads), 0.0, gl.float32, flat))
    place = (share * streams + stream).to(gl.int64) * (kv_heads * group) + head * group
    line = gl.arange(0, heads, gl.SliceLayout(0, flat))
    e = gl.arange(0, padded, gl.SliceLayout(1, flat))[:, None]
    top = gl.convert_layout(top, gl.SliceLayout(0, flat))
    total = gl.convert_layout(total, gl.SliceLayout(0, flat))
    seen = ((line < group) & (top > float("-inf")))[None, :] & (e < head_dim)
    gl.store(found + (place + line)[None, :] * head_dim + e, out, mask=seen)
    if key_means is not None:
        # All scores are as much higher: so is their log-sum-exp.
        own = (table * streams + stream).to(gl.int64) * (kv_heads * group) + head * group + line
        used = (line < group)[None, :] & (e < head_dim)
        x = gl.load(queries + own[None, :] * head_dim + e, mask=used, other=0.0).to(gl.float32)
        x *= gl.load(key_means + head * head_dim + e, mask=e < head_dim, other=0.0)
        top += gl.sum(x, axis=0) * scale
    gl.store(sums + place + line, top + gl.log2(total), mask=line < group)


@gluon.jit
def _wait():
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, 0;",
        "=r", [], gl.int32, False, 1,
    )  # fmt: skip
