"""The array part of aggregation: how alike embeddings are, and their means, on the device."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omni_core.aggregation.likeness import GRID, MOST_TOKENS, level_of
from omni_core.backend import MergePlan
from omni_core.units import Int32
from omni_mlx.devices import ComputeDevice


def merge(embeddings: mx.array, plan: MergePlan) -> mx.array:
    """Means of rows ``[streams, k, hidden]``, in the embeddings' own numbers."""
    found = _means(embeddings, plan).astype(embeddings.dtype)
    mx.eval(found)
    return found


class DeviceMemory:
    """Implements :class:`omni_core.backend.VisionMemory` in MLX, in float32.

    Args:
        hidden: width of an embedding.
        device: where they are kept.
        dtype: as which numbers.
    """

    def __init__(self, hidden: int, device: ComputeDevice, dtype: mx.Dtype) -> None:
        self._device = device
        with device.running("aggregation"):
            self._kept = mx.zeros((0, hidden), dtype)

    @property
    def bytes(self) -> int:
        """Of what it has allocated."""
        return self._kept.nbytes

    def compare(
        self, embeddings: mx.array, rows: Int32, at: Int32, slots: Int32
    ) -> tuple[npt.NDArray[np.bool_], Int32]:
        """Which rows are numbers, and how alike some are to what slots hold."""
        with self._device.running("aggregation"):
            given = embeddings[0, mx.array(rows)]
            valid = mx.isfinite(given).all(axis=1)
            given = mx.where(valid[:, None], given, mx.zeros_like(given))
            mine, theirs = given[mx.array(at)], self._kept[mx.array(slots)]
            cosine = (_units(mine) * _units(theirs)).sum(axis=1)
            level = mx.round(cosine * GRID).astype(mx.int32)
            mx.eval(valid, level)
            return np.array(valid), np.array(level)

    def nearest(self, embeddings: mx.array, groups: MergePlan, ids: Int32) -> tuple[Int32, Int32]:
        """Each group's best match, and how alike they are."""
        with self._device.running("aggregation"):
            units = _units(_means(embeddings[:1], groups)[0])
            places = mx.array(ids)
            key = mx.round(units @ units.T * GRID).astype(mx.int32) * MOST_TOKENS
            key = key - (places[:, None] ^ places)
            own = mx.arange(ids.size)
            key = mx.where(own[:, None] == own, mx.iinfo(mx.int32).min, key)
            partner, best = key.argmax(axis=1).astype(mx.int32), key.max(axis=1)
            mx.eval(partner, best)
            return np.array(partner), level_of(np.array(best))

    def keep(self, embeddings: mx.array, groups: MergePlan, slots: Int32) -> None:
        """Keep the mean of each group in a slot."""
        with self._device.running("aggregation"):
            self._put(slots, _means(embeddings[:1], groups)[0])

    def read(self, slots: Int32) -> npt.NDArray[Any]:
        """What slots hold, ``[n, hidden]``."""
        with self._device.running("saving the cache"):
            found = self._kept[mx.array(slots)]
            return np.array(found.view(mx.uint16) if found.dtype == mx.bfloat16 else found)

    def write(self, slots: Int32, rows: npt.NDArray[Any]) -> None:
        """Keep rows ``[n, hidden]`` in slots."""
        with self._device.running("restoring the cache"):
            self._put(slots, mx.array(rows).view(self._kept.dtype))

    def _put(self, slots: Int32, rows: mx.array) -> None:
        room = int(slots.max(initial=-1)) + 1
        if room > len(self._kept):
            more = mx.zeros((room - len(self._kept), self._kept.shape[1]), self._kept.dtype)
            self._kept = mx.concatenate([self._kept, more])
        self._kept[mx.array(slots)] = rows.astype(self._kept.dtype)
        # Else what is kept would hold on to all that it was made of.
        mx.eval(self._kept)


def _means(embeddings: mx.array, plan: MergePlan) -> mx.array:
    """Means in float32, term by term: sums that are the same on every device."""
    streams, _, hidden = embeddings.shape
    total = mx.zeros((streams, len(plan), hidden))
    for at, source in plan.terms():
        total = total.at[:, mx.array(at)].add(embeddings[:, mx.array(source)].astype(mx.float32))
    return total / mx.array(plan.counts)[:, None].astype(mx.float32)


def _units(rows: mx.array) -> mx.array:
    """Rows at length 1 in float32; one of zeros stays."""
    rows = rows.astype(mx.float32)
    # Divided by the largest first: squares of large numbers would overflow.
    largest = mx.abs(rows).max(axis=1, keepdims=True)
    rows = rows / mx.where(largest > 0, largest, 1)
    length = mx.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return rows / mx.where(length > 0, length, 1)
