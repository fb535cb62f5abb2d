"""Cosine similarity in steps of a fixed size, so that equal tokens are equally alike everywhere.

Sums in float32 differ in their last bits from machine to machine, and between the corners of one
matrix product. Of tokens that are the same, that would decide which of them are paired. On a grid
of 2^-12 they are all alike by exactly 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.units import Int32

GRID = 4096
"""Steps of a similarity from 0 to 1."""
MOST_TOKENS = 32768
"""Of a frame: more do not fit :func:`keys`."""
Float64 = npt.NDArray[np.float64]


def finite_rows(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Which rows ``[n, hidden]`` hold nothing but numbers: ``bool[n]``."""
    found: npt.NDArray[np.bool_] = np.isfinite(rows).all(axis=1)
    return found


def unit_rows(rows: npt.NDArray[np.floating]) -> Float64:
    """Rows ``[n, hidden]`` at length 1 in float64; a row of zeros stays, and is like no other."""
    rows = rows.astype(np.float64)
    # Divided by the largest first: squares of large numbers would overflow.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = rows / np.where(largest > 0, largest, 1.0)
    length = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    found: Float64 = rows / np.where(length > 0, length, 1.0)
    return found


def levels(cosine: Float64) -> Int32:
    """Cosines on the grid, ``int32`` from ``-GRID`` to ``GRID``."""
    return np.rint(cosine * GRID).astype(np.int32)


def above(level: Int32, threshold: float) -> npt.NDArray[np.bool_]:
    """Which similarities on the grid are above a threshold."""
    found: npt.NDArray[np.bool_] = level > threshold * GRID
    return found


def keys(level: Int32, ids: Int32) -> Int32:
    """What orders partners: by similarity, of equal ones by the smaller ``a ^ b`` of their ids.

    The second part is the same from both sides and of no two partners alike, so there are no ties,
    and where all tokens are the same they pair off by twos instead of all choosing one.

    Args:
        level: ``int32[k, k]``, on the grid.
        ids: ``int32[k]``, distinct, below :data:`MOST_TOKENS`.
    """
    made = level * np.int32(MOST_TOKENS) - (ids[:, None] ^ ids[None, :])
    return made.astype(np.int32)


def level_of(key: Int32) -> Int32:
    """The similarity that a key of two different tokens was made of."""
    return (key // np.int32(MOST_TOKENS) + 1).astype(np.int32)
