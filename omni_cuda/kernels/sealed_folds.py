"""Sums in the order that :mod:`omni_core.quantization.folding` defines, and roundings to nearest.

A sum over an axis of two has but one order, so that an axis is folded by halves.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def over(a, b, exact: tl.constexpr):
    """A quotient rounded to nearest."""
    return a / b if exact else tl.div_rn(a, b)


@triton.jit
def root(a, exact: tl.constexpr):
    """A square root rounded to nearest."""
    return tl.sqrt(a) if exact else tl.sqrt_rn(a)


@triton.jit
def over_channels(x):
    """``[rows, D]`` of a power of two of channels added over them: ``[rows]``."""
    rows: tl.constexpr = x.shape[0]
    size: tl.constexpr = x.shape[1]
    if size == 2:
        found = tl.sum(x, axis=1)
    else:
        found = over_channels(tl.sum(tl.reshape(x, (rows, 2, size // 2)), axis=1))
    return found


@triton.jit
def over_rows(x):
    """``[rows, D]`` of a power of two of rows added over them: ``[D]``."""
    rows: tl.constexpr = x.shape[0]
    size: tl.constexpr = x.shape[1]
    if rows <= 2:
        found = tl.sum(x, axis=0)
    else:
        found = over_rows(tl.sum(tl.reshape(x, (2, rows // 2, size)), axis=0))
    return found


@triton.jit
def over_all(x):
    """32 numbers added."""
    return tl.sum(over_rows(x[:, None]), axis=0)


@triton.jit
def butterflies(x, count: tl.constexpr):
    """Sums and differences of the channels of ``[rows, D]`` that lie 1, 2, 4 and on apart."""
    rows: tl.constexpr = x.shape[0]
    d = tl.arange(0, x.shape[1])
    for level in range(count):
        other = tl.broadcast_to((d ^ (1 << level))[None, :], (rows, x.shape[1]))
        other = tl.gather(x, other, axis=1)
        x = tl.where((d >> level & 1)[None, :] != 0, other - x, x + other)
    return x


@triton.jit
def cells_of(i, rows: tl.constexpr):
    """Cells ``[rows]`` that come ``i``-th, so that a fold by halves is one of rows, then terms."""
    first = (i & 1) << 4 | (i & 2) << 2 | i & 4 | (i & 8) >> 2 | i >> 4
    return first // rows + tl.arange(0, rows) * (32 // rows)


@triton.jit
def nothing(padded: tl.constexpr):
    """What waits before the first term."""
    zero = tl.zeros([padded], tl.float32)
    return zero, zero, zero, zero, zero


@triton.jit
def folded(i, tile, p0, p1, p2, p3, p4):
    """Take in the ``i``-th of all tiles of 32 rows: the sum with the last one, and what waits.

    Where a bit of ``i`` and all below it are set, a sum meets the one that waited for it.
    """
    terms: tl.constexpr = 32 // tile.shape[0]
    term = over_rows(tile)
    if terms >= 2:
        p0 = tl.where((i & 1) == 0, term, p0)
        term = p0 + term
    if terms >= 4:
        p1 = tl.where((i & 3) == 1, term, p1)
        term = p1 + term
    if terms >= 8:
        p2 = tl.where((i & 7) == 3, term, p2)
        term = p2 + term
    if terms >= 16:
        p3 = tl.where((i & 15) == 7, term, p3)
        term = p3 + term
    if terms == 32:
        p4 = tl.where(i == 15, term, p4)
        term = p4 + term
    return term, p0, p1, p2, p3, p4
