"""Sums in float32 whose order is part of the format, so that every backend rounds alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


def folded(x: Float32, axis: int) -> Float32:
    """The sum over an axis: its second half is added to its first until one number is left.

    An axis that is no power of two is filled with zeros first. These are the sums of a butterfly
    across lanes, widest stride first.
    """
    x = np.moveaxis(x, axis, 0)
    size = 1 << (len(x) - 1).bit_length()
    x = np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), np.float32)])
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    total: Float32 = x[0]
    return total


def norm(x: Float32) -> Float32:
    """Of the last axis."""
    found: Float32 = np.sqrt(folded(x * x, -1))
    return found


def turned(matrices: Float32, vectors: Float32) -> Float32:
    """``float32[kv_heads, cells, D]`` of matrices ``[kv_heads, D, D]``, term after term."""
    found = np.zeros_like(vectors)
    for e in range(vectors.shape[-1]):
        found += vectors[:, :, e, None] * matrices[:, None, :, e]
    return found
