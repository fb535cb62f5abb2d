"""Levels of rotated, normalised numbers, which are nearly Gaussian.

Sources: J. Max, "Quantizing for minimum distortion" (1960), tables I and II; Yoo et al.,
"OmniKVQuant: KV Cache Quantization for Omni-LLMs".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

_LLOYD_MAX = {
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326),
}
UNIFORM_STEP = {2: 0.996, 3: 0.5860, 4: 0.3352}
"""The step between uniform levels that errs least on a Gaussian of variance 1, by bits."""


def lloyd_max(bits: int) -> Float32:
    """The levels that err least on a Gaussian of variance 1, ascending."""
    half = np.array(_LLOYD_MAX[bits])
    return np.concatenate([-half[::-1], half]).astype(np.float32)


def in_unit_range(bits: int) -> tuple[Float32, Float32]:
    """OmniKVQuant's levels of keys, from 0 to 1, and the boundaries between them.

    Those of 2 bits are its constants; boundaries of more bits are half way.
    """
    if bits == 2:
        own = np.array([0, 0.3501, 0.6499, 1], np.float32)
        return own, np.array([0.1751, 0.5, 0.8249], np.float32)
    found = lloyd_max(bits)
    levels = ((found - found[0]) / (found[-1] - found[0])).astype(np.float32)
    return levels, middles(levels)


def centred(bits: int) -> Float32:
    """Uniform levels of step 1 about 0: a code less half the largest."""
    return np.arange(2**bits, dtype=np.float32) - np.float32((2**bits - 1) / 2)


def middles(levels: Float32) -> Float32:
    """The boundaries half way between ascending levels."""
    found: Float32 = (levels[1:] + levels[:-1]) * np.float32(0.5)
    return found
