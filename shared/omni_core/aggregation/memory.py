"""The array part of aggregation, in NumPy: what a backend does where its embeddings lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.aggregation.likeness import finite_rows, keys, level_of, levels, unit_rows
from omni_core.backend import MergePlan
from omni_core.units import Int32

Rows = npt.NDArray[Any]


def means(rows: Rows, plan: MergePlan) -> Rows:
    """The mean of each group of rows ``[n, hidden]``, ``[k, hidden]``, term by term."""
    total = np.zeros((len(plan), rows.shape[1]), np.result_type(rows, np.float32))
    for at, source in plan.terms():
        total[at] += rows[source]
    found: Rows = total / plan.counts[:, None].astype(total.dtype)
    return found


class HostMemory:
    """A :class:`~omni_core.backend.VisionMemory` in NumPy: the definition.

    Args:
        hidden: width of an embedding.
        dtype: of its numbers.
    """

    def __init__(self, hidden: int, dtype: npt.DTypeLike = np.float32) -> None:
        self._kept = np.zeros((0, hidden), dtype)

    @property
    def bytes(self) -> int:
        """Of what it has allocated."""
        return int(self._kept.nbytes)

    def compare(
        self, embeddings: Rows, rows: Int32, at: Int32, slots: Int32
    ) -> tuple[npt.NDArray[np.bool_], Int32]:
        """Which rows are numbers, and how alike some are to what slots hold."""
        given = embeddings[0][rows]
        valid = finite_rows(given)
        # Rows that are no numbers are like nothing, as rows of zeros are.
        given = np.where(valid[:, None], given, 0)
        cosine = (unit_rows(given[at]) * unit_rows(self._kept[slots])).sum(axis=1)
        return valid, levels(cosine)

    def nearest(self, embeddings: Rows, groups: MergePlan, ids: Int32) -> tuple[Int32, Int32]:
        """Each group's best match, and how alike they are."""
        units = unit_rows(means(embeddings[0], groups))
        key = keys(levels(units @ units.T), ids)
        np.fill_diagonal(key, np.iinfo(np.int32).min)
        partner = key.argmax(axis=1).astype(np.int32)
        return partner, level_of(key[np.arange(ids.size), partner])

    def keep(self, embeddings: Rows, groups: MergePlan, slots: Int32) -> None:
        """Keep the mean of each group in a slot."""
        self.write(slots, means(embeddings[0], groups))

    def read(self, slots: Int32) -> Rows:
        """What slots hold, ``[n, hidden]``."""
        found: Rows = self._kept[slots]
        return found

    def write(self, slots: Int32, rows: Rows) -> None:
        """Keep rows ``[n, hidden]`` in slots."""
        room = int(slots.max(initial=-1)) + 1
        if room > len(self._kept):
            grown = np.zeros((room, self._kept.shape[1]), self._kept.dtype)
            grown[: len(self._kept)] = self._kept
            self._kept = grown
        self._kept[slots] = rows
