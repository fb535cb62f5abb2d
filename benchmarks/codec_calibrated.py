"""Tables of a model's layers, calibrated on captured streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.codec_capture import Captured, shares
from omni_core.quantization import LayerTables
from omni_core.quantization.hadamard import rotate
from omni_core.quantization.key_feedback import feedback
from omni_core.quantization.value_rotations import calibrated
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
    """With value rotations from streams; a modality that did not occur keeps Hadamard.

    Args:
        tables: to be changed.
        streams: what to calibrate on.
        shared: one rotation for all modalities, of all tokens.
    """
    found = []
    for own in tables:
        rotations = own.rotations.copy()
        by_modality = sum(_value_moments(stream, own.layer) for stream in streams)
        moments = np.asarray(by_modality)
        if shared:
            moments = np.broadcast_to(moments.sum(axis=1, keepdims=True), moments.shape)
        occurs = moments.any(axis=(0, 2, 3))
        rotations[:, occurs] = calibrated(moments[:, occurs])
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
    """Second moments ``float64[kv_heads, modalities, D, D]`` of values by squared attention.

    A token counts by what it gets over the mean, and once more: or the few tokens that most queries
    read would be all that a rotation suits.
    """
    given = np.square(shares(stream.queries[layer], stream.keys[layer])).sum(axis=1)
    kv_heads = stream.keys.shape[2]
    weights = given.reshape(kv_heads, -1, given.shape[-1]).sum(axis=1, dtype=np.float64)
    weights = weights / weights.mean(axis=-1, keepdims=True) + 1
    values = stream.values[layer].swapaxes(0, 1).astype(np.float64)
    of_kind = [
        (values * (weights * (stream.modality == kind))[..., None]).swapaxes(1, 2) @ values
        for kind in Modality
    ]
    return np.stack(of_kind, axis=1)
