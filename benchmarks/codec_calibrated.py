"""Tables of a model's layers, calibrated on captured streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt

from benchmarks.codec_capture import Captured, shares
from omni_core.quantization import LayerTables
from omni_core.quantization.hadamard import hadamard, rotate
from omni_core.quantization.key_feedback import feedback
from omni_core.quantization.value_rotations import fitted
from omni_core.units import Modality

Float64 = npt.NDArray[np.float64]


def plain(stream: Captured) -> list[LayerTables]:
    """Uncalibrated, a layer each."""
    layers, _, kv_heads, size = stream.keys.shape
    return [LayerTables.uncalibrated(layer, kv_heads, size) for layer in range(layers)]


def with_feedback(tables: list[LayerTables], streams: Sequence[Captured]) -> list[LayerTables]:
    """With key feedback from the queries of streams."""
    found = []
    for own in tables:
        moments = sum(_query_moments(stream, own.layer) for stream in streams)
        found.append(replace(own, feedback=feedback(np.asarray(moments))))
    return found


def with_rotations(
    tables: list[LayerTables], streams: Sequence[Captured], shared: bool = False
) -> list[LayerTables]:
    """With value rotations fitted to streams; a modality that did not occur keeps Hadamard.

    Args:
        tables: to be changed.
        streams: what to calibrate on.
        shared: one rotation for all modalities, of all tokens.
    """
    modality = np.concatenate([stream.modality for stream in streams])
    found = []
    for own in tables:
        values = np.concatenate([stream.values[own.layer] for stream in streams])
        rotations = own.rotations.copy()
        for kind, head in product(Modality, range(values.shape[1])):
            fits = np.full(modality.shape, True) if shared else modality == kind
            if fits.any():
                rotations[head, kind] = fitted(values[fits, head])
        found.append(replace(own, rotations=rotations))
    return found


def with_principal(tables: list[LayerTables], streams: Sequence[Captured]) -> list[LayerTables]:
    """With the paper's rotations: Hadamard of the values' principal axes, by modality.

    ``R = H U'`` with the eigenvectors of second moments in the columns of ``U``, that of the
    largest eigenvalue first and each with its largest entry above 0.
    """
    found = []
    for own in tables:
        moments = np.asarray(sum(_value_moments(stream, own.layer) for stream in streams))
        vectors = np.linalg.eigh(moments)[1][..., ::-1]
        largest = np.abs(vectors).argmax(axis=-2)[..., None, :]
        vectors = vectors * np.sign(np.take_along_axis(vectors, largest, axis=-2))
        turned = hadamard(moments.shape[-1]).astype(np.float64) @ vectors.swapaxes(-1, -2)
        occurs = moments.any(axis=(0, 2, 3))[:, None, None]
        rotations = np.where(occurs, turned, own.rotations).astype(np.float32)
        found.append(replace(own, rotations=rotations))
    return found


def with_means(tables: list[LayerTables], stream: Captured) -> list[LayerTables]:
    """With the mean of each head's keys."""
    return [replace(own, key_means=stream.keys[own.layer].mean(axis=0)) for own in tables]


def _query_moments(stream: Captured, layer: int) -> Float64:
    """Second moments ``float64[kv_heads, D, D]`` of rotated queries."""
    count, _, size = stream.queries.shape[1:]
    kv_heads = stream.keys.shape[2]
    turned = rotate(stream.queries[layer]).reshape(count, kv_heads, -1, size)
    rows = turned.swapaxes(0, 1).reshape(kv_heads, -1, size).astype(np.float64)
    found: Float64 = rows.swapaxes(1, 2) @ rows / rows.shape[1]
    return found


def _value_moments(stream: Captured, layer: int) -> Float64:
    """Second moments ``float64[kv_heads, modalities, D, D]`` of values by squared attention."""
    given = np.square(shares(stream.queries[layer], stream.keys[layer])).sum(axis=1)
    kv_heads = stream.keys.shape[2]
    weights = given.reshape(kv_heads, -1, given.shape[-1]).sum(axis=1, dtype=np.float64)
    values = stream.values[layer].swapaxes(0, 1).astype(np.float64)
    of_kind = [
        (values * (weights * (stream.modality == kind))[..., None]).swapaxes(1, 2) @ values
        for kind in Modality
    ]
    return np.stack(of_kind, axis=1)
