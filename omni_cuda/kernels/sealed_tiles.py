"""A sealed subblock of each warp, and its scores, weights and codes as tensor cores take them."""

from __future__ import annotations

import triton
import triton.language as tl

from omni_cuda.kernels.sealed_unpack import code_pairs, e2m1, half_pair, packed, product


@triton.jit
def _subblock(
    sub, there, head, first,
    kv_heads: tl.constexpr, page_words: tl.constexpr, far: tl.constexpr,
):  # fmt: skip
    """Where the page of each subblock begins, in words."""
    page = (sub >> 1) - first
    if far:
        page = page.to(tl.int64)
    at = (page * kv_heads + head) * page_words
    return tl.where(there, at, 0)


@triton.jit
def load(
    words, shorts, bias, sub, there, head, first,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, padded: tl.constexpr, bits: tl.constexpr,
    low: tl.constexpr, page_words: tl.constexpr, key_words: tl.constexpr, value_at: tl.constexpr,
    ranges_at: tl.constexpr, key_scales_at: tl.constexpr, value_scales_at: tl.constexpr,
    exponents_at: tl.constexpr, far: tl.constexpr, warps: tl.constexpr,
):  # fmt: skip
    """A subblock of each warp, as it lies."""
    at = tl.multiple_of(_subblock(sub, there, head, first, kv_heads, page_words, far), 4)
    half = sub & 1
    # Key codes [warps, word, cell].
    count: tl.constexpr = head_dim * low // 32
    room: tl.constexpr = padded * low // 32
    i = tl.arange(0, room)
    cell = tl.arange(0, 32)
    start = tl.multiple_of(at + half * key_words, 4)[:, None, None]
    used = there[:, None, None] & (i < count)[None, :, None]
    at_key = tl.multiple_of(start + i[None, :, None] * 32 + cell[None, None, :], (1, 1, 4))
    keys = tl.load(words + at_key, mask=used, other=0)
    upper_keys = keys
    if bits == 3:
        # A word of the high plane holds the bits of two words of the low one.
        start += count * 32
        place = i[None, :, None] // 2 * 32 + cell[None, None, :]
        upper_keys = (
            tl.load(words + start + place, mask=used, other=0) >> (i % 2 * 8)[None, :, None]
        )
    # Value codes [warps, word, pair].
    v_count: tl.constexpr = head_dim * low // 16
    v_room: tl.constexpr = padded * low // 16
    o = tl.arange(0, v_room)
    pair = tl.arange(0, 16)
    start = tl.multiple_of(at + value_at + half * (head_dim * bits), 4)[:, None, None]
    used = there[:, None, None] & (o < v_count)[None, :, None]
    at_value = tl.multiple_of(start + o[None, :, None] * 16 + pair[None, None, :], (1, 1, 4))
    values = tl.load(words + at_value, mask=used, other=0)
    upper_values = values
    if bits == 3:
        start += v_count * 16
        place = o[None, :, None] // 2 * 16 + pair[None, None, :]
        upper_values = tl.load(words + start + place, mask=used, other=0)
        upper_values >>= (o % 2 * 8)[None, :, None]
    # Ranges [warps, word, four channels].
    j: tl.constexpr = 8 // low
    quad = tl.arange(0, j)
    channel = i[:, None] * j + quad[None, :]
    used = there[:, None, None] & (channel < head_dim // 4)[None]
    start = tl.multiple_of(at + ranges_at + half * (head_dim // 4), 4)[:, None, None]
    ranges = tl.load(words + start + channel[None], mask=used, other=0)
    start = at * 2 + exponents_at + half * ((head_dim + 31) // 32)
    exponents = tl.load(shorts + start[:, None, None] + (channel // 8)[None], mask=used, other=0)
    # Scales, of two cells a word: [warps, 16]; see _scores for the cells' order.
    c = tl.arange(0, 16)
    two = c % 8 * 2 + c // 8
    start = (at + key_scales_at + half * 16)[:, None] + two[None, :]
    key_scales = tl.load(words + start, mask=there[:, None], other=0)
    start = (at + value_scales_at + half * 16)[:, None] + two[None, :]
    value_scales = tl.load(words + start, mask=there[:, None], other=0)
    added = key_scales
    if bias is not None:
        start = sub[:, None] * 32 + (c % 8 * 4 + c // 8 * 2)[None, :]
        added = tl.join(
            tl.load(bias + start, mask=there[:, None], other=0.0),
            tl.load(bias + start + 1, mask=there[:, None], other=0.0),
        )
    return (
        keys,
        upper_keys,
        values,
        upper_values,
        ranges,
        exponents,
        key_scales,
        value_scales,
        added,
    )


@triton.jit
def _ranges(ranges, exponents, warps: tl.constexpr, padded: tl.constexpr, middle: tl.constexpr,
            exact: tl.constexpr):  # fmt: skip
    """Spans, and offsets of code 0: pairs ``int32[warps, padded / 2]`` in the order of places."""
    e = exponents.to(tl.int32)
    offset_scale = ((e & 0xFF) << 23).to(tl.float32, bitcast=True)
    span_scale = ((e & 0xFF00) << 15).to(tl.float32, bitcast=True)
    s0 = e2m1(ranges >> 4) * span_scale
    s1 = e2m1(ranges >> 12) * span_scale
    s2 = e2m1(ranges >> 20) * span_scale
    s3 = e2m1(ranges >> 28) * span_scale
    o0 = e2m1(ranges) * offset_scale - s0 * middle
    o1 = e2m1(ranges >> 8) * offset_scale - s1 * middle
    o2 = e2m1(ranges >> 16) * offset_scale - s2 * middle
    o3 = e2m1(ranges >> 24) * offset_scale - s3 * middle
    # [warps, i, quad, pair of the quad] to [warps, (quad, pair), i]
    spans = tl.join(packed(s0, s1, exact), packed(s2, s3, exact))
    offsets = tl.join(packed(o0, o1, exact), packed(o2, o3, exact))
    spans = tl.reshape(tl.permute(spans, (0, 2, 3, 1)), (warps, padded // 2))
    offsets = tl.reshape(tl.permute(offsets, (0, 2, 3, 1)), (warps, padded // 2))
    return spans, offsets


@triton.jit
def _pairs(pairs, warps: tl.constexpr, padded: tl.constexpr):
    """Halves ``[warps, padded]`` of ``int32[warps, padded / 2]``."""
    low, high = half_pair(pairs)
    return tl.reshape(tl.join(low, high), (warps, padded))


@triton.jit
def _even_and_odd(words, warps: tl.constexpr, i: tl.constexpr):
    """``[warps, i, 32]`` as ``[warps, i, 16]`` of cells ``4 g + 2 x``, and the next."""
    apart = tl.permute(tl.reshape(words, (warps, i, 8, 2, 2)), (0, 1, 3, 2, 4))
    return tl.split(tl.reshape(apart, (warps, i, 16, 2)))


@triton.jit
def _key_codes(words, upper, bits: tl.constexpr, warps: tl.constexpr, padded: tl.constexpr):
    """Codes ``[warps, 16, padded]`` of ``[warps, i, 16]``, channels in the order of places."""
    j: tl.constexpr = 4 if bits == 4 else 8
    i: tl.constexpr = padded // j // 2
    place = tl.arange(0, j)[None, None, :, None]
    words = tl.permute(words, (0, 2, 1))[:, :, None, :]
    upper = tl.permute(upper, (0, 2, 1))[:, :, None, :]
    low, high = code_pairs(words, upper, place, bits)
    return tl.reshape(tl.join(low, high), (warps, 16, i * j * 2))


@triton.jit
def scores(tile, occupied, bias, q, places, factor, bits: tl.constexpr, low: tl.constexpr,
           warps: tl.constexpr, padded: tl.constexpr, heads: tl.constexpr, middle: tl.constexpr,
           exact: tl.constexpr):  # fmt: skip
    """Scores ``[warps, 16, heads]`` of cells ``4 (c % 8) + 2 (c // 8)`` and those after them."""
    keys, upper, _, _, ranges, exponents, key_scales, value_scales, added = tile
    spans, offsets = _ranges(ranges, exponents, warps, padded, middle, exact)
    spans, offsets = _pairs(spans, warps, padded), _pairs(offsets, warps, padded)
    turned = product(
        tl.broadcast_to(places[None], (warps, padded, heads)),
        tl.broadcast_to(spans[:, :, None], (warps, padded, heads)),
        exact,
    )
    ground = tl.dot(
        tl.broadcast_to(offsets[:, None, :], (warps, 16, padded)),
        tl.broadcast_to(q[None], (warps, padded, heads)),
    )
    ground *= factor[None, None, :] * (2.0**-20)
    i: tl.constexpr = padded * low // 32
    first, second = _even_and_odd(keys, warps, i)
    first_upper, second_upper = _even_and_odd(upper, warps, i)
    some = tl.dot(_key_codes(first, first_upper, bits, warps, padded), turned)
    others = tl.dot(_key_codes(second, second_upper, bits, warps, padded), turned)
    n0, n1 = half_pair(key_scales)
    c = tl.arange(0, 16)
    cell = c % 8 * 4 + c // 8 * 2
    live0 = ((occupied[:, None] >> cell[None, :]) & 1) != 0
    live1 = ((occupied[:, None] >> (cell + 1)[None, :]) & 1) != 0
    some = (some * factor[None, None, :] + ground) * n0.to(tl.float32)[:, :, None]
    others = (others * factor[None, None, :] + ground) * n1.to(tl.float32)[:, :, None]
    if bias is not None:
        b0, b1 = tl.split(added)
        some += b0[:, :, None] * 1.4426950408889634
        others += b1[:, :, None] * 1.4426950408889634
    some = tl.where(live0[:, :, None], some, float("-inf"))
    others = tl.where(live1[:, :, None], others, float("-inf"))
    v0, v1 = half_pair(value_scales)
    v0 = tl.where(live0, v0, 0.0)
    v1 = tl.where(live1, v1, 0.0)
    return some, others, v0, v1


@triton.jit
def weighted(w0, w1, v0, v1, warps: tl.constexpr, heads: tl.constexpr):
    """Weights times scales as halves ``[warps, 32, heads]``, in the order of the values' pairs."""
    w0 = (w0 * v0.to(tl.float32)[:, :, None]).to(tl.float16)
    w1 = (w1 * v1.to(tl.float32)[:, :, None]).to(tl.float16)
    # [x, g, head, r], cell 4 g + 2 x + r = 8 a + 4 h + m, to pairs (a, m) and halves h.
    both = tl.reshape(tl.join(w0, w1), (warps, 2, 4, 2, heads, 2))
    # [warps, x, a, h, head, r] to [warps, a, x, r, h, head]
    both = tl.permute(both, (0, 2, 1, 5, 3, 4))
    return tl.reshape(both, (warps, 32, heads))


@triton.jit
def value_codes(words, upper, bits: tl.constexpr, warps: tl.constexpr, padded: tl.constexpr):
    """Codes ``[warps, padded, 32]`` of ``[warps, o, 16]``, channels in the order of places."""
    j: tl.constexpr = 4 if bits == 4 else 8
    o: tl.constexpr = padded // j
    place = tl.arange(0, j)[None, :, None, None]
    low, high = code_pairs(words[:, None], upper[:, None], place, bits)
    return tl.reshape(tl.join(low, high), (warps, o * j, 32))
