"""The Hadamard rotation of keys and queries, and of values that have no rotation of their own.

A Sylvester matrix exists for powers of two alone. Any other ``head_dim`` is rotated by blocks of
the largest power of two that divides it: 96 as three of 32, 80 as five of 16. There are no random
signs: the matrix is the same in every layer and head, symmetric, and its own inverse.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError

Float32 = npt.NDArray[np.float32]

MULTIPLE = 16
"""What divides every ``head_dim`` that can be sealed."""


def block_size(head_dim: int) -> int:
    """Channels that are rotated together: the largest power of two that divides ``head_dim``.

    Raises:
        OmniError: ``head_dim`` is no multiple of 16.
    """
    if head_dim < MULTIPLE or head_dim % MULTIPLE:
        raise OmniError(
            f"a head_dim of {head_dim} cannot be sealed, expected a multiple of {MULTIPLE}; "
            "keep this model's cache in 16 bits"
        )
    return head_dim & -head_dim


@cache
def hadamard(head_dim: int) -> Float32:
    """The rotation as a matrix ``float32[head_dim, head_dim]``, orthonormal; not to be written."""
    found = rotate(np.eye(head_dim, dtype=np.float32))
    found.flags.writeable = False
    return found


def rotate(x: npt.NDArray[np.floating]) -> Float32:
    """Rotate ``x[..., head_dim]``; a second time gives ``x`` back.

    Butterflies in float32 over strides 1, 2, 4 and on, scaled once at the end, so that whoever
    adds in this order gets the same bits.
    """
    size = block_size(x.shape[-1])
    y = x.astype(np.float32)
    stride = 1
    while stride < size:
        pairs = y.reshape(-1, 2, stride)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        stride *= 2
    return y.reshape(x.shape) * np.float32(size**-0.5)
