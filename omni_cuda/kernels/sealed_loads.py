"""What lanes load of sealed pages, and where each finds it."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _words(pointers, index, count: gl.constexpr, room: gl.constexpr):
    if count == room:
        return gl.load(pointers)
    return gl.load(pointers, mask=index < count, other=0)


@gluon.jit
def page_of(sub, there, head, first, kv_heads: gl.constexpr, page_words: gl.constexpr,
          far: gl.constexpr):  # fmt: skip
    """Where each warp's page begins, in words; some page where there is no row."""
    page = (sub >> 1) - first
    if far:
        page = page.to(gl.int64)
    return gl.where(there, (page * kv_heads + head) * page_words, 0)


@gluon.jit
def load_keys(
    words, shorts, bias, sub, at,
    head_dim: gl.constexpr, padded: gl.constexpr, bits: gl.constexpr, key_words: gl.constexpr,
    ranges_at: gl.constexpr, key_scales_at: gl.constexpr, value_scales_at: gl.constexpr,
    exponents_at: gl.constexpr, kl: gl.constexpr, rl: gl.constexpr, sl: gl.constexpr,
):  # fmt: skip
    """All of each warp's subblock but the codes of values, as it lies."""
    j: gl.constexpr = 4 if bits == 4 else 8
    half = sub & 1
    # Codes [W, word, cell].
    room: gl.constexpr = padded // j // 2
    count: gl.constexpr = head_dim // j // 2
    i = gl.arange(0, room, gl.SliceLayout(0, gl.SliceLayout(2, kl)))[None, :, None]
    cell = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, kl)))[None, None, :]
    start = gl.convert_layout(at + half * key_words, gl.SliceLayout(1, gl.SliceLayout(2, kl)))
    start = start[:, None, None]
    keys = _words(words + gl.multiple_of(start + i * 32 + cell, (1, 1, 4)), i, count, room)
    upper = keys
    if bits == 3:
        # A word of the high plane holds the bits of two words of the low one.
        place = start + count * 32 + i // 2 * 32 + cell
        upper = _words(words + gl.multiple_of(place, (1, 1, 4)), i, count, room) >> (i % 2 * 8)
    # Ranges [W, word, four channels].
    i = gl.arange(0, room, gl.SliceLayout(0, gl.SliceLayout(2, rl)))[None, :, None]
    quad = gl.arange(0, j // 2, gl.SliceLayout(0, gl.SliceLayout(1, rl)))[None, None, :]
    four = i * (j // 2) + quad
    start = at + ranges_at + half * (head_dim // 4)
    start = gl.convert_layout(start, gl.SliceLayout(1, gl.SliceLayout(2, rl)))[:, None, None]
    ranges = _words(words + start + four, four, head_dim // 4, padded // 4)
    start = at * 2 + exponents_at + half * ((head_dim + 31) // 32)
    start = gl.convert_layout(start, gl.SliceLayout(1, gl.SliceLayout(2, rl)))[:, None, None]
    exponents = _words(shorts + start + four // 8, four, head_dim // 4, padded // 4)
    # Scales, of two cells a word: [W, 16].
    two = gl.arange(0, 16, gl.SliceLayout(0, sl))[None, :]
    start = gl.convert_layout(at + key_scales_at + half * 16, gl.SliceLayout(1, sl))[:, None]
    key_scales = gl.load(words + gl.multiple_of(start + two, (1, 2)))
    start = gl.convert_layout(at + value_scales_at + half * 16, gl.SliceLayout(1, sl))[:, None]
    value_scales = gl.load(words + gl.multiple_of(start + two, (1, 2)))
    b0 = key_scales
    b1 = key_scales
    if bias is not None:
        start = gl.convert_layout(sub * 32, gl.SliceLayout(1, sl))[:, None] + two * 2
        b0 = gl.load(bias + start)
        b1 = gl.load(bias + start + 1)
    return keys, upper, ranges, exponents, key_scales, value_scales, b0, b1


@gluon.jit
def load_values(
    words, sub, at, head_dim: gl.constexpr, padded: gl.constexpr, bits: gl.constexpr,
    value_at: gl.constexpr, vl: gl.constexpr,
):  # fmt: skip
    """Codes of each warp's values, [W, word, pair]."""
    j: gl.constexpr = 4 if bits == 4 else 8
    room: gl.constexpr = padded // j
    count: gl.constexpr = head_dim // j
    o = gl.arange(0, room, gl.SliceLayout(0, gl.SliceLayout(2, vl)))[None, :, None]
    pair = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, vl)))[None, None, :]
    start = at + value_at + (sub & 1) * (head_dim * bits)
    start = gl.convert_layout(start, gl.SliceLayout(1, gl.SliceLayout(2, vl)))[:, None, None]
    values = _words(words + gl.multiple_of(start + o * 16 + pair, (1, 1, 4)), o, count, room)
    upper = values
    if bits == 3:
        place = start + count * 16 + o // 2 * 16 + pair
        upper = _words(words + gl.multiple_of(place, (1, 1, 4)), o, count, room) >> (o % 2 * 8)
    return values, upper


def layouts(padded: int, bits: int, warps: int) -> dict[str, gl.DistributedLinearLayout]:
    """Where each lane finds what it loads.

    Args:
        padded: channels, a power of two.
        bits: of a code.
        warps: of a program, a power of two.
    """
    places = 4 if bits == 4 else 8
    wide = padded // places // 2
    tall = padded // places
    across = [1 << i for i in range(warps.bit_length() - 1)]

    def of(reg: list[list[int]], lane: list[list[int]], shape: list[int]) -> object:
        first = [[each] + [0] * (len(shape) - 1) for each in across]
        return gl.DistributedLinearLayout(
            [[0, *base] for base in reg], [[0, *base] for base in lane], first, [], shape
        )

    def powers(start: int, stop: int) -> list[int]:
        return [1 << i for i in range(16) if start <= 1 << i < stop]

    # A lane's place in its group of four, and its group.
    t = [[1, 0] if wide > 1 else [0, 0], [2, 0] if wide > 2 else [0, 0]]
    keys = of(
        [[0, 1], [0, 2], *([i, 0] for i in powers(4, wide))],
        [*t, [0, 4], [0, 8], [0, 16]],
        [warps, wide, 32],
    )
    g = [[o, 0] for o in powers(1, min(8, tall))]
    g += [[0, 0]] * (3 - len(g))
    values = of(
        [[0, 1], [0, 2], *([o, 0] for o in powers(8, tall))],
        [[0, 4], [0, 8], *g],
        [warps, tall, 16],
    )
    quads = [[0, q] for q in powers(1, places // 2)] + [[i, 0] for i in powers(1, wide)]
    ranges = of(quads[5:], quads[:5] + [[0, 0]] * (5 - len(quads)), [warps, wide, places // 2])
    scales = of([[1]], [[0], [0], [2], [4], [8]], [warps, 16])
    steps = powers(4, wide) + [wide * j for j in powers(1, places)]
    pairs = of([[s] for s in steps], [[1], [2], [0], [0], [0]], [warps, padded // 2])
    return {"kl": keys, "vl": values, "rl": ranges, "sl": scales, "pl": pairs}
