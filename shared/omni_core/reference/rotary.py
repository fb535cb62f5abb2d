"""Rotary embedding tables in float64, and the rotation itself as an oracle."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.units import Int32


def rotary_tables(
    positions: Int32, head_dim: int, theta: float, sections: tuple[int, ...]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines ``float32[T, head_dim / 2]`` of positions ``int32[3, T]``.

    Angles are taken in float64: float32 angles are off by 0.0035 at position 1e5. ``sections``
    gives how many of the ``head_dim / 2`` frequencies read each position row, in order (the
    ``mrope_section`` of Qwen2-VL's multimodal RoPE); empty means that all read row 0.
    """
    half = head_dim // 2
    frequencies = theta ** (-np.arange(half, dtype=np.float64) / half)
    rows = np.repeat(np.arange(len(sections)), sections) if sections else np.zeros(half, np.int64)
    angles = positions[rows].T.astype(np.float64) * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(
    x: npt.NDArray[np.float64], cos: npt.NDArray[np.floating], sin: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Rotate ``x[T, heads, head_dim]`` by ``[T, head_dim / 2]``; ``i`` pairs with ``i + half``."""
    c, s = cos[:, None, :].astype(np.float64), sin[:, None, :].astype(np.float64)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)
