"""Codes to words, as :mod:`omni_core.quantization.packing` lays them out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_keys(words, codes, head_dim: tl.constexpr, padded: tl.constexpr, bits: tl.constexpr):
    """Codes ``[32, padded]`` of keys, all their planes."""
    low: tl.constexpr = 2 if bits == 3 else bits
    codes = tl.where((tl.arange(0, padded) < head_dim)[None, :], codes, 0)
    _key_plane(words, codes & ((1 << low) - 1), head_dim, padded, low)
    if bits == 3:
        _key_plane(words + (head_dim * 2 + 31) // 32 * 32, codes >> 2, head_dim, padded, 1)


@triton.jit
def store_values(words, codes, head_dim: tl.constexpr, padded: tl.constexpr, bits: tl.constexpr):
    """Codes ``[32, padded]`` of values, all their planes."""
    low: tl.constexpr = 2 if bits == 3 else bits
    _value_plane(words, codes & ((1 << low) - 1), head_dim, padded, low)
    if bits == 3:
        _value_plane(words + head_dim * 2, codes >> 2, head_dim, padded, 1)


@triton.jit
def _key_plane(words, codes, head_dim: tl.constexpr, padded: tl.constexpr, plane: tl.constexpr):
    """Words ``[i, cell]``."""
    j: tl.constexpr = 16 // plane
    i: tl.constexpr = padded // (2 * j)
    shift = (tl.arange(0, j) * plane)[:, None] + (tl.arange(0, 2) * 16)[None, :]
    codes = tl.reshape(codes, (32, i, j, 2)) << shift[None, None]
    found = tl.sum(tl.sum(codes, axis=3), axis=2)
    word = tl.arange(0, i)
    place = word[None, :] * 32 + tl.arange(0, 32)[:, None]
    count: tl.constexpr = (head_dim * plane + 31) // 32
    tl.store(words + place, found, mask=(word < count)[None, :])


@triton.jit
def _value_plane(words, codes, head_dim: tl.constexpr, padded: tl.constexpr, plane: tl.constexpr):
    """Words ``[o, pair]``."""
    j: tl.constexpr = 16 // plane
    o: tl.constexpr = padded // j
    codes = tl.reshape(codes, (4, 2, 4, o, j)) << (tl.arange(0, j) * plane)[None, None, None, None]
    halves = tl.sum(codes, axis=4) << (tl.arange(0, 2) * 16)[None, :, None, None]
    found = tl.reshape(tl.sum(halves, axis=1), (16, o))
    word = tl.arange(0, o)
    place = word[None, :] * 16 + tl.arange(0, 16)[:, None]
    tl.store(words + place, found, mask=(word < head_dim // j)[None, :])
