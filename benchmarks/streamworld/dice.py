"""From dice to numbers: even spreads, choices and noise, the same on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[Any]

FACES = 65_536
"""A die shows 0 to 65,535."""


def spread(dice: Ints, low: float, high: float) -> Floats:
    """Dice as numbers evenly spread over ``low`` to ``high``."""
    part = (dice.astype(np.float32) + np.float32(0.5)) * np.float32(1 / FACES)
    return np.float32(low) + part * np.float32(high - low)


def choice(dice: Ints, count: Any) -> npt.NDArray[np.int64]:
    """Dice as integers below ``count``."""
    return (dice.astype(np.int64) * count) >> 16


def hashed(seed: Ints, size: int) -> npt.NDArray[np.uint32]:
    """``uint32[N, size]`` of well mixed bits for seeds ``[N]``: Wellons' ``lowbias32``."""
    bits = seed.astype(np.uint32)[:, None] * np.uint32(0x9E3779B9) + np.arange(
        size, dtype=np.uint32
    )
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x7FEB352D)
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0x846CA68B)
    bits ^= bits >> np.uint32(16)
    return bits


def noise(seed: Ints, size: int) -> Floats:
    """``float32[N, size]`` of nearly normal noise of deviation 1: four bytes' sum."""
    bits = hashed(seed, size)
    total = (bits & np.uint32(255)) + (bits >> np.uint32(8) & np.uint32(255))
    total += (bits >> np.uint32(16) & np.uint32(255)) + (bits >> np.uint32(24))
    return (total.astype(np.float32) - np.float32(510)) * np.float32(1 / 147.8)


def seed_of(high: Ints, low: Ints) -> npt.NDArray[np.uint32]:
    """A 32-bit seed from two dice."""
    return high.astype(np.uint32) << np.uint32(16) | low.astype(np.uint32)
