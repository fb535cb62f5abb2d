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
def key_codes(words, head_dim: tl.constexpr, padded: tl.constexpr, bits: tl.constexpr):
    """A subblock's key codes ``[padded, 32]``, channels in their own order."""
    low: tl.constexpr = 2 if bits == 3 else bits
    codes = _key_plane(words, head_dim, padded, low)
    if bits == 3:
        codes |= _key_plane(words + head_dim * 2 // 32 * 32, head_dim, padded, 1) << 2
    return codes


@triton.jit
def _key_plane(words, head_dim: tl.constexpr, padded: tl.constexpr, plane: tl.constexpr):
    # A word holds so many channels of either half, and all channels may be fewer.
    places: tl.constexpr = 16 // plane if 16 // plane * 2 <= padded else padded // 2
    room: tl.constexpr = padded // (2 * places)
    i = tl.arange(0, room)
    used = (i < (head_dim * plane + 31) // 32)[:, None]
    found = tl.load(words + i[:, None] * 32 + tl.arange(0, 32)[None, :], mask=used, other=0)
    shift = (tl.arange(0, places) * plane)[:, None] + (tl.arange(0, 2) * 16)[None, :]
    codes = (found[:, None, None, :] >> shift[None, :, :, None]) & ((1 << plane) - 1)
    return tl.reshape(codes, (padded, 32))


@triton.jit
def value_codes(words, head_dim: tl.constexpr, padded: tl.constexpr, bits: tl.constexpr):
    """A subblock's value codes ``[padded, 32]``, channels in the order of places."""
    low: tl.constexpr = 2 if bits == 3 else bits
    places: tl.constexpr = 16 // low
    room: tl.constexpr = padded // places
    # [place, word, cell / 8, half, cell % 4]: a word is a pair of cells'.
    j = tl.arange(0, places)
    o = tl.arange(0, room)
    pair = tl.arange(0, 16)
    used = (o < head_dim // places)[:, None]
    found = tl.load(words + o[:, None] * 16 + pair[None, :], mask=used, other=0)
    found = tl.reshape(found, (room, 4, 4))[None, :, :, None, :]
    half = (tl.arange(0, 2) * 16)[None, None, None, :, None]
    codes = (found >> ((j * low)[:, None, None, None, None] + half)) & ((1 << low) - 1)
    if bits == 3:
        # A word of the high plane holds 16 channels.
        words += head_dim * 2 + (o // 2)[:, None] * 16 + pair[None, :]
        upper = tl.reshape(tl.load(words, mask=used, other=0), (room, 4, 4))[None, :, :, None, :]
        shift = j[:, None] + (o % 2 * 8)[None, :]
        codes |= ((upper >> (shift[:, :, None, None, None] + half)) & 1) << 2
    return tl.reshape(codes, (padded, 32))
