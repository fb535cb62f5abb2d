"""The array part of aggregation: how alike embeddings are, and their means, on the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omni_core.aggregation.likeness import GRID, MOST_TOKENS, level_of
from omni_core.backend import MergePlan
from omni_core.units import Int32
from omni_cuda import devices


def merge(embeddings: torch.Tensor, plan: MergePlan) -> torch.Tensor:
    """Means of rows ``[streams, k, hidden]``, in the embeddings' own numbers."""
    source, counts = _sent([plan.source, plan.counts], embeddings.device)
    return torch.stack([_means(rows, source, counts).to(embeddings.dtype) for rows in embeddings])


class DeviceMemory:
    """Implements :class:`omni_core.backend.VisionMemory` in PyTorch, in float32.

    Args:
        hidden: width of an embedding.
        device, dtype: where they are kept, and as which numbers.
        running: around what the device does, to tell what failed.
    """

    def __init__(
        self,
        hidden: int,
        device: torch.device,
        dtype: torch.dtype,
        running: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._running = running
        self._kept = torch.zeros(0, hidden, device=device, dtype=dtype)

    @property
    def bytes(self) -> int:
        """Of what it has allocated."""
        return self._kept.numel() * self._kept.element_size()

    @torch.inference_mode()
    def compare(
        self, embeddings: torch.Tensor, rows: Int32, at: Int32, slots: Int32
    ) -> tuple[npt.NDArray[np.bool_], Int32]:
        """Which rows are numbers, and how alike some are to what slots hold."""
        with self._running():
            wanted, chosen, held = _sent([rows, at, slots], self._kept.device)
            units, length = _units(embeddings[0, wanted])
            # What is no number makes the length none, and what is compared with it.
            valid = torch.isfinite(length)
            cosine = (units[chosen] * _units(self._kept[held])[0]).sum(1)
            level = torch.round(cosine.nan_to_num() * GRID).int()
            # Both in one copy: the host waits once.
            found = torch.cat([valid.int(), level]).cpu().numpy()
        return found[: rows.size].astype(np.bool_), found[rows.size :]

    @torch.inference_mode()
    def nearest(
        self, embeddings: torch.Tensor, groups: MergePlan, ids: Int32
    ) -> tuple[Int32, Int32]:
        """Each group's best match, and how alike they are."""
        with self._running():
            sent = [groups.source, groups.counts, ids]
            source, counts, places = _sent(sent, self._kept.device)
            units, _ = _units(_means(embeddings[0], source, counts))
            places = places.int()
            key = torch.round(units @ units.T * GRID).int() * MOST_TOKENS
            key -= places[:, None] ^ places
            key.fill_diagonal_(torch.iinfo(torch.int32).min)
            best, partner = key.max(1)
            found = torch.stack([partner.int(), best]).cpu().numpy()
        return found[0], level_of(found[1])

    @torch.inference_mode()
    def keep(self, embeddings: torch.Tensor, groups: MergePlan, slots: Int32) -> None:
        """Keep the mean of each group in a slot."""
        with self._running():
            source, counts = _sent([groups.source, groups.counts], self._kept.device)
            self._put(slots, _means(embeddings[0], source, counts))

    @torch.inference_mode()
    def read(self, slots: Int32) -> npt.NDArray[Any]:
        """What slots hold, ``[n, hidden]``."""
        return devices.download(self._kept[self._index(slots)])

    @torch.inference_mode()
    def write(self, slots: Int32, rows: npt.NDArray[Any]) -> None:
        """Keep rows ``[n, hidden]`` in slots."""
        with self._running():
            self._put(slots, devices.upload(rows, self._kept.device).view(self._kept.dtype))

    def _put(self, slots: Int32, rows: torch.Tensor) -> None:
        room = int(slots.max(initial=-1)) + 1
        if room > len(self._kept):
            more = self._kept.new_zeros(room - len(self._kept), self._kept.shape[1])
            self._kept = torch.cat([self._kept, more])
        self._kept[self._index(slots)] = rows.to(self._kept.dtype)

    def _index(self, numbers: Int32) -> torch.Tensor:
        return devices.upload(numbers, self._kept.device, torch.int64)


def _sent(arrays: list[Int32], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Arrays on the device as int64, in one copy."""
    together = devices.upload(np.concatenate(arrays), device, torch.int64)
    return together.split([array.size for array in arrays])


def _means(rows: torch.Tensor, source: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Means of groups of rows ``[n, hidden]`` in float32; a group's are summed one by one."""
    picked = rows[source].float()
    if len(source) == len(counts):
        return picked
    total = torch.segment_reduce(picked, "sum", lengths=counts, axis=0, unsafe=True)
    return total / counts[:, None]


def _units(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows ``[n, hidden]`` at length 1 in float32, one of zeros as it is; their lengths ``[n]``."""
    # Squares of large numbers would overflow in 32 bits.
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    least = torch.finfo(torch.float32).tiny
    return (rows / length.clamp_min(least)).float(), length[:, 0]
