"""How the codes of a subblock lie in 32-bit words: the layout that all kernels read.

A word of a plane of ``b`` bits holds ``32 / b`` codes, two and two: those of a pair lie 16 bits
apart, at bit ``b * j`` of either half of the word. So ``word & mask`` leaves a pair as two halves
of a register, ready for half-precision arithmetic: as denormal halves, codes times ``2**(b * j -
24)``, or, with ``0x6400`` set in the same instruction, as ``1024 + code * 2**(b * j)``. The power
of two that depends on ``j`` is folded into what lies outside the sum, or into what the codes are
multiplied by, once; pairs whose bits reach past a half's mantissa are shifted down together.

- **Keys.** A word is one cell's: half ``h`` of pair ``j`` of word ``i`` is channel
  ``(32 / b) * i + 2 * j + h``, so that the power of two goes into the query. Words lie as ``[i,
  cell]``: 16 bytes are one word of four neighbouring cells. With a lane a cell, each word is one
  coalesced load. In a tensor-core tile ``m16n8k16`` over cells, lane ``(g, t)`` reads words ``t``
  and ``t + 4`` of the cells ``4g`` to ``4g + 3``, its rows in both tiles, in one load each, and
  their four scales in one more.
- **Values.** A word is a pair of cells': half ``h``, place ``j`` of word ``[o, pair]`` is channel
  ``(16 / b) * o + j`` of cell ``8 * (pair // 4) + pair % 4 + 4 * h``, so that the power of two goes
  into the output's channel, at the very end. These are the pairs in which the scores of the key
  tile above come back when each of its 8 x 8 blocks is transposed, and 16 bytes are the four words
  of a lane.

2 and 4 bits are one plane. 3 bits are a plane of the two low bits, then one of the high bit; where
the channels of keys do not fill the last word of a plane, its other codes are 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.backend import SUBBLOCK
from omni_core.errors import OmniError

UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]

PLANES = {2: (2,), 3: (2, 1), 4: (4,)}
"""Bits of a code, and those of the planes that it is cut into, low bits first."""
_WORD, _HALF = 32, 16


def planes(bits: int) -> tuple[int, ...]:
    """The planes of codes of so many bits.

    Raises:
        OmniError: neither 2, 3 nor 4 bits.
    """
    if bits not in PLANES:
        raise OmniError(
            f"codes of {bits} bits cannot be sealed, expected 2, 3 or 4; choose one of them, or 16 "
            "for a cache that is not sealed"
        )
    return PLANES[bits]


def key_words(head_dim: int, bits: int) -> int:
    """Words of a subblock's key codes."""
    return SUBBLOCK * sum(-(-head_dim * plane // _WORD) for plane in planes(bits))


def value_words(head_dim: int, bits: int) -> int:
    """Words of a subblock's value codes."""
    return SUBBLOCK * head_dim * sum(planes(bits)) // _WORD


def pack_keys(codes: UInt8, bits: int) -> UInt32:
    """Words ``uint32[..., key_words]`` of key codes ``uint8[..., 32, D]``."""
    lead, found = codes.shape[:-2], []
    for plane, part in _cut(codes, bits):
        short = -part.shape[-1] % (_WORD // plane)
        part = np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, short)])
        part = part.reshape(*lead, SUBBLOCK, -1, _HALF // plane, 2)
        words = _joined(part, plane)
        found.append(words.swapaxes(-1, -2).reshape(*lead, -1))
    return np.concatenate(found, axis=-1)


def unpack_keys(words: UInt32, head_dim: int, bits: int) -> UInt8:
    """Codes ``uint8[..., 32, D]`` of what :func:`pack_keys` gave."""
    lead = words.shape[:-1]
    codes = np.zeros((*lead, SUBBLOCK, head_dim), np.uint8)
    begin = low = 0
    for plane in planes(bits):
        count = -(-head_dim * plane // _WORD)
        part = words[..., begin : begin + SUBBLOCK * count].reshape(*lead, count, SUBBLOCK)
        split = _split(part.swapaxes(-1, -2), plane)
        codes |= split.reshape(*lead, SUBBLOCK, -1)[..., :head_dim] << low
        begin, low = begin + SUBBLOCK * count, low + plane
    return codes


def pack_values(codes: UInt8, bits: int) -> UInt32:
    """Words ``uint32[..., value_words]`` of value codes ``uint8[..., 32, D]``."""
    lead, found = codes.shape[:-2], []
    for plane, part in _cut(codes, bits):
        # [cells / 8, half, cell % 4, word, position] to [word, cells / 8, cell % 4, position, half]
        part = part.reshape(*lead, SUBBLOCK // 8, 2, 4, -1, _HALF // plane)
        words = _joined(np.moveaxis(part, (-2, -4), (-5, -1)), plane)
        found.append(words.reshape(*lead, -1))
    return np.concatenate(found, axis=-1)


def unpack_values(words: UInt32, head_dim: int, bits: int) -> UInt8:
    """Codes ``uint8[..., 32, D]`` of what :func:`pack_values` gave."""
    lead = words.shape[:-1]
    codes = np.zeros((*lead, SUBBLOCK, head_dim), np.uint8)
    begin = low = 0
    for plane in planes(bits):
        count = head_dim * plane
        part = words[..., begin : begin + count].reshape(*lead, -1, SUBBLOCK // 8, 4)
        split = np.moveaxis(_split(part, plane), (-5, -1), (-2, -4))
        codes |= split.reshape(*lead, SUBBLOCK, head_dim) << low
        begin, low = begin + count, low + plane
    return codes


def _cut(codes: UInt8, bits: int) -> list[tuple[int, UInt32]]:
    found: list[tuple[int, UInt32]] = []
    low = 0
    for plane in planes(bits):
        part = (codes >> np.uint8(low)) & np.uint8((1 << plane) - 1)
        found.append((plane, part.astype(np.uint32)))
        low += plane
    return found


def _shifts(plane: int) -> UInt32:
    """Where the code of ``[position, half]`` lies in its word."""
    positions = np.arange(_HALF // plane, dtype=np.uint32) * plane
    return positions[:, None] + np.array([0, _HALF], np.uint32)


def _joined(part: UInt32, plane: int) -> UInt32:
    words: UInt32 = (part << _shifts(plane)).sum(axis=(-2, -1), dtype=np.uint32)
    return words


def _split(words: UInt32, plane: int) -> UInt8:
    return ((words[..., None, None] >> _shifts(plane)) & ((1 << plane) - 1)).astype(np.uint8)
