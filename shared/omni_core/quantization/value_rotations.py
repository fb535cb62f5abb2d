"""Rotations of values: one for each key/value head and modality of a layer.

A modality's values are turned into the eigenbasis of their second moment, weighted by what
attention makes of them, then by Hadamard, so that each coordinate gets the same share.

Source: Yoo et al., "OmniKVQuant: KV Cache Quantization for Omni-LLMs", section 2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.quantization.hadamard import hadamard
from omni_core.units import Modality

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def fallback(kv_heads: int, head_dim: int) -> Float32:
    """Hadamard for every head and modality: ``float32[kv_heads, modalities, D, D]``."""
    shape = (kv_heads, len(Modality), head_dim, head_dim)
    return np.broadcast_to(hadamard(head_dim), shape)


def calibrated(moments: Float64) -> Float32:
    """Rotations ``float32[..., D, D]`` from weighted second moments ``float64[..., D, D]``.

    ``R = H U'`` with the eigenvectors in the columns of ``U``, that of the largest eigenvalue first
    and each with its largest entry above 0. A value ``v`` is rotated as ``R v``.
    """
    vectors = np.linalg.eigh(moments)[1][..., ::-1]
    largest = np.abs(vectors).argmax(axis=-2)[..., None, :]
    vectors = vectors * np.sign(np.take_along_axis(vectors, largest, axis=-2))
    turned = hadamard(moments.shape[-1]).astype(np.float64) @ vectors.swapaxes(-1, -2)
    found: Float32 = turned.astype(np.float32)
    return found
