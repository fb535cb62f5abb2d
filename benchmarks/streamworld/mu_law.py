"""8-bit mu-law: how the banks keep sound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MU = 255.0


def compress(samples: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Samples in -1..1 as bytes; silence is 128."""
    clipped = np.clip(samples, -1, 1)
    bent = np.sign(clipped) * np.log1p(_MU * np.abs(clipped)) / np.log1p(_MU)
    return np.round(128 + bent * 127).astype(np.uint8)


def _table() -> npt.NDArray[np.float32]:
    bent = (np.arange(256) - 128) / 127.0
    samples = np.sign(bent) * np.expm1(np.abs(bent) * np.log1p(_MU)) / _MU
    return samples.astype(np.float32)


EXPANDED = _table()
"""``float32[256]``: the sample each byte stands for."""
