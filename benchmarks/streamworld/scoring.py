"""How answers are counted: lags in buckets, and how sure a share is."""

from __future__ import annotations

import math

LAGS = (0, 1, 4, 16, 32, 64, 128, 256)
"""Lower bounds in units of the lags that are counted together."""


def interval(right: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share of ``count`` answers (Wilson 1927): two shares from 0 to 1."""
    if count == 0:
        return 0.0, 1.0
    share = right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
