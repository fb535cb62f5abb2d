"""The fit of a subblock's key ranges, by the steps of :mod:`omni_core.quantization.fitted`."""

from __future__ import annotations

import triton
import triton.language as tl

from omni_cuda.kernels.sealed_folds import cells_of, folded, nothing, over
from omni_cuda.kernels.sealed_ranges import around, decoded, encoded, exponents, nearest


@triton.jit(do_not_specialize=["sealed_pages"])
def fit(
    target,
    coordinates,
    weights,
    sealed,
    sealed_pages,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    page: tl.constexpr,
    bits: tl.constexpr,
    size: tl.constexpr,
    ranges_at: tl.constexpr,
    scales_at: tl.constexpr,
    exponents_at: tl.constexpr,
    blocks: tl.constexpr,
    drawn: tl.constexpr,
    fed: tl.constexpr,
    wider: tl.constexpr,
    rows: tl.constexpr,
    exact: tl.constexpr,
):
    """Ranges and exponents of a subblock of a head.

    Args:
        target: ``int32[n]``, subblocks ``page * 2 + half``.
        coordinates: ``float32[programs, 32, head_dim]``.
        weights: ``float32[programs, 32]``, what each cell counts.
        sealed: pages that have the keys' scales; those above 0 are live.
        drawn, wider: of :mod:`omni_core.quantization.fitted`.
        fed: whether codes are found with feedback.
    """
    head = tl.program_id(0) % kv_heads
    slab = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, padded)
    used = d < head_dim
    line = (slab * tl.num_programs(0) + tl.program_id(0)) * 32
    weights += line
    coordinates += line * head_dim
    subblock = tl.load(target + tl.program_id(0) // kv_heads)
    part = subblock & 1
    place = ((slab * sealed_pages + (subblock >> 1)) * kv_heads + head) * size
    scales = (sealed + place + scales_at + part * 64).to(tl.pointer_type(tl.float16))
    centre, step, mean = _line(
        coordinates, weights, scales, d, used, head_dim, padded, rows, bits, drawn, exact
    )
    centre_bytes, c_exponent = exponents(centre, blocks)
    near = decoded(encoded(centre, c_exponent, exact), c_exponent)
    reach = tl.abs(centre - near)
    # A channel far from 0 that hardly moves: levels reach at least to where it really is.
    half: tl.constexpr = (2**bits - 1) / 2
    step = tl.maximum(step, over(reach, tl.zeros_like(reach) + half, exact))
    step_bytes, s_exponent = exponents(step, blocks)
    narrow, wide = around(step, s_exponent, exact)
    offsets, spans, error = narrow, narrow, step
    for side in range(2):
        tried = tl.where(side == 0, narrow, wide)
        span = decoded(tried, s_exponent)
        p0, p1, p2, p3, p4 = nothing(padded)
        suited = p0
        for i in range(32 // rows):
            x, weight, _ = _tile(coordinates, weights, scales, i, d, used, head_dim, rows)
            steps = nearest(x, centre[None, :], span[None, :], bits, exact).to(tl.float32) - half
            steps *= weight
            suited, p0, p1, p2, p3, p4 = folded(i, steps, p0, p1, p2, p3, p4)
        low, high = around(mean - span * suited, c_exponent, exact)
        first, second = _errors(
            coordinates, weights, scales, d, used, decoded(low, c_exponent),
            decoded(high, c_exponent), span, head_dim, padded, rows, bits, exact,
        )  # fmt: skip
        better = (side == 0) | (first < error)
        error = tl.where(better, first, error)
        offsets = tl.where(better, low, offsets)
        spans = tl.where(better, tried, spans)
        better = second < error
        error = tl.where(better, second, error)
        offsets = tl.where(better, high, offsets)
        spans = tl.where(better, tried, spans)
    if fed:
        step = decoded(spans, s_exponent) * wider
        step_bytes, s_exponent = exponents(step, blocks)
        spans = encoded(step, s_exponent, exact)
    ranges = (offsets | (spans << 4)).to(tl.uint8)
    tl.store(sealed + place + ranges_at + part * head_dim + d, ranges, mask=used)
    one = tl.arange(0, padded // 32)
    to = sealed + place + exponents_at + part * (2 * blocks) + one * 2
    tl.store(to, centre_bytes.to(tl.uint8), mask=one < blocks)
    tl.store(to + 1, step_bytes.to(tl.uint8), mask=one < blocks)


@triton.jit
def _line(coordinates, weights, scales, d, used, head_dim: tl.constexpr, padded: tl.constexpr,
          rows: tl.constexpr, bits: tl.constexpr, drawn: tl.constexpr,
          exact: tl.constexpr):  # fmt: skip
    """Centre and step of the line through numbers and first codes, and the numbers' mean."""
    half: tl.constexpr = (2**bits - 1) / 2
    least = tl.full([padded], float("inf"), tl.float32)
    most = tl.full([padded], float("-inf"), tl.float32)
    for i in range(32 // rows):
        x, _, live = _tile(coordinates, weights, scales, i, d, used, head_dim, rows)
        least = tl.minimum(least, tl.min(tl.where(live, x, float("inf")), axis=0))
        most = tl.maximum(most, tl.max(tl.where(live, x, float("-inf")), axis=0))
    some = least <= most
    least, most = tl.where(some, least, 0.0), tl.where(some, most, 0.0)
    step = (most - least) * drawn
    centre = (least + most) * 0.5
    p0, p1, p2, p3, p4 = nothing(padded)
    q0, q1, q2, q3, q4 = nothing(padded)
    mean, middle = p0, p0
    for i in range(32 // rows):
        x, weight, _ = _tile(coordinates, weights, scales, i, d, used, head_dim, rows)
        steps = nearest(x, centre[None, :], step[None, :], bits, exact).to(tl.float32) - half
        mean, p0, p1, p2, p3, p4 = folded(i, x * weight, p0, p1, p2, p3, p4)
        middle, q0, q1, q2, q3, q4 = folded(i, steps * weight, q0, q1, q2, q3, q4)
    spread, slope = p0, p0
    for i in range(32 // rows):
        x, weight, _ = _tile(coordinates, weights, scales, i, d, used, head_dim, rows)
        steps = nearest(x, centre[None, :], step[None, :], bits, exact).to(tl.float32) - half
        apart = (steps - middle[None, :]) * weight
        spread, p0, p1, p2, p3, p4 = folded(i, steps * apart, p0, p1, p2, p3, p4)
        slope, q0, q1, q2, q3, q4 = folded(i, (x - mean[None, :]) * apart, q0, q1, q2, q3, q4)
    slope = over(slope, tl.where(spread > 0, spread, 1.0), exact)
    step = tl.where(spread > 0, slope, step)
    return mean - step * middle, step, mean


@triton.jit
def _errors(coordinates, weights, scales, d, used, low, high, span, head_dim: tl.constexpr,
            padded: tl.constexpr, rows: tl.constexpr, bits: tl.constexpr,
            exact: tl.constexpr):  # fmt: skip
    """How much two offsets err with a span."""
    half: tl.constexpr = (2**bits - 1) / 2
    p0, p1, p2, p3, p4 = nothing(padded)
    q0, q1, q2, q3, q4 = nothing(padded)
    first, second = p0, p0
    for i in range(32 // rows):
        x, weight, _ = _tile(coordinates, weights, scales, i, d, used, head_dim, rows)
        levels = nearest(x, low[None, :], span[None, :], bits, exact).to(tl.float32) - half
        gap = x - low[None, :] - span[None, :] * levels
        first, p0, p1, p2, p3, p4 = folded(i, gap * gap * weight, p0, p1, p2, p3, p4)
        levels = nearest(x, high[None, :], span[None, :], bits, exact).to(tl.float32) - half
        gap = x - high[None, :] - span[None, :] * levels
        second, q0, q1, q2, q3, q4 = folded(i, gap * gap * weight, q0, q1, q2, q3, q4)
    return first, second


@triton.jit
def _tile(coordinates, weights, scales, i, d, used, head_dim: tl.constexpr, rows: tl.constexpr):
    """The ``i``-th cells' numbers, and their weights and whether they are live, ``[rows, 1]``."""
    cell = cells_of(i, rows)
    x = tl.load(coordinates + cell[:, None] * head_dim + d[None, :], used[None, :], 0.0)
    weight = tl.load(weights + cell)
    live = tl.load(scales + cell) > 0
    return x, weight[:, None], live[:, None]
