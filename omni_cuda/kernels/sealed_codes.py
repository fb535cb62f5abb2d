"""Codes of sealed subblocks one by one, as :mod:`omni_core.quantization.packing` lays them out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def meanings(codes, levels, start: tl.constexpr, bits: tl.constexpr):
    """What codes say as ``float16``, by the table that begins at ``start``."""
    if levels is None:
        # A code in a mantissa's last bits, under the exponent of 1024; both differences are exact.
        found = (codes | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
        found = found - 1024.0 - (2**bits - 1) / 2
    else:
        found = tl.load(levels + start + codes).to(tl.float16)
    return found


@triton.jit
def key_codes(words, at, head_dim: tl.constexpr, padded: tl.constexpr, bits: tl.constexpr):
    """Key codes ``[padded, cells]``, channels in their own order.

    ``at`` is each cell's first word.
    """
    low: tl.constexpr = 2 if bits == 3 else bits
    codes = _key_plane(words, at, head_dim, padded, low)
    if bits == 3:
        codes |= _key_plane(words + head_dim * 2 // 32 * 32, at, head_dim, padded, 1) << 2
    return codes


@triton.jit
def _key_plane(words, at, head_dim: tl.constexpr, padded: tl.constexpr, plane: tl.constexpr):
    # A word holds so many channels of either half, and all channels may be fewer.
    places: tl.constexpr = 16 // plane if 16 // plane * 2 <= padded else padded // 2
    room: tl.constexpr = padded // (2 * places)
    i = tl.arange(0, room)
    used = (i < (head_dim * plane + 31) // 32)[:, None]
    found = tl.load(words + (at[None, :] + i[:, None] * 32), mask=used, other=0)
    shift = (tl.arange(0, places) * plane)[:, None] + (tl.arange(0, 2) * 16)[None, :]
    codes = (found[:, None, None, :] >> shift[None, :, :, None]) & ((1 << plane) - 1)
    return tl.reshape(codes, (padded, at.shape[0]))


@triton.jit
def value_codes(words, at, head_dim: tl.constexpr, padded: tl.constexpr, bits: tl.constexpr):
    """Value codes ``[padded, cells]``, channels in the order of places.

    ``at`` is the first word of each pair of cells, 16 pairs a subblock.
    """
    low: tl.constexpr = 2 if bits == 3 else bits
    places: tl.constexpr = 16 // low
    room: tl.constexpr = padded // places
    subblocks: tl.constexpr = at.shape[0] // 16
    # [place, word, subblock and cell / 8, half, cell % 4]: a word is a pair of cells'.
    j = tl.arange(0, places)
    o = tl.arange(0, room)
    used = (o < head_dim // places)[:, None]
    found = tl.load(words + (at[None, :] + o[:, None] * 16), mask=used, other=0)
    found = tl.reshape(found, (room, subblocks * 4, 4))[None, :, :, None, :]
    half = (tl.arange(0, 2) * 16)[None, None, None, :, None]
    codes = (found >> ((j * low)[:, None, None, None, None] + half)) & ((1 << low) - 1)
    if bits == 3:
        # A word of the high plane holds 16 channels.
        above = words + head_dim * 2 + (at[None, :] + (o // 2)[:, None] * 16)
        upper = tl.reshape(tl.load(above, mask=used, other=0), (room, subblocks * 4, 4))
        shift = j[:, None] + (o % 2 * 8)[None, :]
        upper = upper[None, :, :, None, :] >> (shift[:, :, None, None, None] + half)
        codes |= (upper & 1) << 2
    return tl.reshape(codes, (padded, subblocks * 32))
