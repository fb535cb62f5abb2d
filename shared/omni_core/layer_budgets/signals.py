"""What a running stream tells of a layer: how large its values are, how its attention spreads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def feature_magnitude(norms: npt.NDArray[np.floating]) -> float:
    """A layer's mean value norm.

    Args:
        norms: ``[n, kv_heads]``, the length of each value vector.
    """
    return float(np.mean(norms, dtype=np.float64))


def attention_entropy(shares: npt.NDArray[np.floating]) -> float:
    """The entropy of a layer's attention in nats, averaged over query heads and queries.

    Queries that see nothing are left out; 0 where none sees anything.

    Args:
        shares: ``[q_heads, T, n]``, rows that sum to 1, or to 0 where a query sees nothing.
    """
    wide = shares.astype(np.float64)
    seeing = wide.sum(axis=-1) > 0
    if not seeing.any():
        return 0.0
    logs = np.log(wide, out=np.zeros_like(wide), where=wide > 0)
    # A row of one share that rounding left above 1 would come out below 0.
    return max(0.0, float(-(wide * logs).sum(axis=-1)[seeing].mean()))
