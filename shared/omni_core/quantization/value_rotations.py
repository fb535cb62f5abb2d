"""Rotations of values: one for each key/value head and modality of a layer.

A value is coded as the nearest of few vectors, and a rotation says how these lie. One is fitted to
samples: codes are drawn, then the rotation that brings the values closest to them, in turns.
Hadamard, with which it begins, makes any values look Gaussian; the fit brings back what they have
of a shape of their own, which each modality has another of. Noise that fades from round to round
keeps it from the first rotation that no round would change.

Source: Gong et al., "Iterative Quantization: A Procrustean Approach to Learning Binary Codes"
(2011), with the levels of 2 bits and a scale a vector in place of signs. What is fitted to 2 bits
errs less than Hadamard at 3 and 4 as well.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.quantization import codebooks
from omni_core.quantization.hadamard import hadamard
from omni_core.units import Modality

Float32 = npt.NDArray[np.float32]

BITS = 2
"""That rotations are fitted to."""
ROUNDS = 60
"""Of codes and rotation in turns."""
NOISE = np.float32(0.5)
"""Deviation of what is added to coordinates of variance 1 in the first round."""


def fallback(kv_heads: int, head_dim: int) -> Float32:
    """Hadamard for every head and modality: ``float32[kv_heads, modalities, D, D]``."""
    shape = (kv_heads, len(Modality), head_dim, head_dim)
    return np.broadcast_to(hadamard(head_dim), shape)


def fitted(values: Float32) -> Float32:
    """The rotation ``float32[D, D]`` for values like ``values[n, D]``; ``v`` is rotated as ``R v``.

    Too few samples fit themselves alone: see :func:`error` on others.
    """
    rotation = hadamard(values.shape[-1])
    draw = np.random.default_rng(0)
    for fading in np.linspace(NOISE, 0, ROUNDS, dtype=np.float32):
        turned = values @ rotation.T
        levels = _levels(turned, fading * draw.standard_normal(turned.shape, np.float32))
        # The scale that errs least, for which the fit is least squares.
        scale = _over((turned * levels).sum(axis=-1), np.square(levels).sum(axis=-1))
        left, _, right = np.linalg.svd(((levels * scale).T @ values).astype(np.float64))
        rotation = (left @ right).astype(np.float32)
    return rotation


def error(values: Float32, rotation: Float32) -> float:
    """Square error of ``values[n, D]`` read back, over their squares; 0 where all of them are 0."""
    turned = values @ rotation.T
    levels = _levels(turned, np.float32(0))
    read = levels * _over(np.linalg.norm(turned, axis=-1), np.linalg.norm(levels, axis=-1))
    total = np.square(turned, dtype=np.float64).sum()
    return float(np.square(read - turned, dtype=np.float64).sum() / total) if total > 0 else 0.0


def _levels(turned: Float32, noise: Float32 | np.float32) -> Float32:
    """The levels nearest to rotated values, each brought to variance 1, and noise."""
    levels = codebooks.centred(BITS)
    bounds = codebooks.middles(levels) * np.float32(codebooks.UNIFORM_STEP[BITS])
    unit = turned * _over(np.float32(turned.shape[-1] ** 0.5), np.linalg.norm(turned, axis=-1))
    found: Float32 = levels[np.searchsorted(bounds, unit + noise, side="right")]
    return found


def _over(x: Float32 | np.float32, scale: Float32) -> Float32:
    """``x / scale`` as a column ``[n, 1]``, and 0 where the scale is 0."""
    out = np.zeros_like(scale)
    return np.divide(x, scale, out=out, where=scale > 0)[:, None]
