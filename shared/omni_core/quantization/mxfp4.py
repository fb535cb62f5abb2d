"""MXFP4: numbers of 4 bits (e2m1) with an exponent byte for each block of 32.

A code is a sign bit over the index of a magnitude. The exponent byte is that of a float32, so that
the block's scale is ``byte << 23`` read as one; it is the least that clips nothing. Where a head's
channels are no multiple of 32 the last block is short.

Source: OCP Microscaling Formats (MX) Specification v1.0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

BLOCK = 32
"""Numbers that share an exponent."""
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MIDDLES = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2
_SIGN = np.uint8(8)
_GRID = np.concatenate([-MAGNITUDES[:0:-1], MAGNITUDES])
_GRID_CODES = np.concatenate([np.arange(7, 0, -1) | 8, np.arange(8)]).astype(np.uint8)


def blocks(count: int) -> int:
    """Exponent bytes of so many numbers."""
    return -(-count // BLOCK)


def exponents(x: Float32) -> UInt8:
    """The exponent bytes ``uint8[..., blocks(D)]`` of ``float32[..., D]``.

    The least ``e`` with ``6 * 2**e`` at or above the block's largest magnitude, plus 127. From a
    float32's own fields it is its exponent less 2, and one more where its mantissa is over 1.5.
    """
    short = -x.shape[-1] % BLOCK
    padded = np.pad(np.abs(x), [(0, 0)] * (x.ndim - 1) + [(0, short)])
    largest = padded.reshape(*x.shape[:-1], -1, BLOCK).max(axis=-1)
    bits = largest.astype(np.float32).view(np.uint32).astype(np.int64)
    found = (bits >> 23) - 2 + ((bits & 0x7FFFFF) > 0x400000)
    byte: UInt8 = np.clip(found, 1, 254).astype(np.uint8)
    return byte


def encode(x: Float32, exponent: UInt8) -> UInt8:
    """Codes ``uint8[..., D]``, 0 to 15, of the numbers nearest; half way, the larger magnitude."""
    magnitudes = np.searchsorted(_MIDDLES, np.abs(_scaled(x, exponent)), side="right")
    signs = np.where((x < 0) & (magnitudes > 0), _SIGN, 0)
    return magnitudes.astype(np.uint8) | signs.astype(np.uint8)


def around(x: Float32, exponent: UInt8) -> tuple[UInt8, UInt8]:
    """Codes of the two neighbouring numbers that ``x`` lies between, the lesser one first.

    A number that has a code is the lesser one, unless it is the largest.
    """
    at = np.clip(np.searchsorted(_GRID, _scaled(x, exponent), side="right"), 1, _GRID.size - 1)
    return _GRID_CODES[at - 1], _GRID_CODES[at]


def decode(codes: UInt8, exponent: UInt8) -> Float32:
    """The numbers ``float32[..., D]`` of codes and exponent bytes; exact."""
    magnitudes = MAGNITUDES[codes & 7]
    signed = np.where(codes & _SIGN, -magnitudes, magnitudes)
    found: Float32 = signed * _scales(exponent, codes.shape[-1])
    return found


def _scaled(x: Float32, exponent: UInt8) -> Float32:
    found: Float32 = x / _scales(exponent, x.shape[-1])
    return found


def _scales(exponent: UInt8, count: int) -> Float32:
    scales = (exponent.astype(np.uint32) << 23).view(np.float32)
    return np.repeat(scales, BLOCK, axis=-1)[..., :count]
