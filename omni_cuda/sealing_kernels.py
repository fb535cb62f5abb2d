"""Sealing on the device: what a plan seals is coded where it lies, in all layers at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from omni_core.backend import PAGE, ArenaLayout, MovePlan
from omni_core.paging.mirror import TableMirror
from omni_core.quantization import LayerTables
from omni_cuda.arena import Arena
from omni_cuda.devices import upload
from omni_cuda.kernels.sealed_store import SealTables, seal_cells


class SealingKernels:
    """Seals as the codec that is the default does.

    Args:
        layout: of an arena that has sealed pages.
        tables: of each layer of the model; all of them have feedback, or none.
        rotations: those of values, ``float32[layers, modalities, kv_heads, D, D]``, on the device.
        device: where the arena is.

    Attributes:
        bytes: of its tables on the device.
    """

    def __init__(
        self,
        layout: ArenaLayout,
        tables: Sequence[LayerTables],
        rotations: torch.Tensor,
        device: torch.device,
    ) -> None:
        self._layout, self._format = layout, layout.sealed
        means = np.stack([each.key_means for each in tables])
        feedback = [each.feedback for each in tables if each.feedback is not None]
        self._turns = rotations.transpose(-1, -2).contiguous()
        self._means = upload(means, device) if means.any() else None
        self._feedback = upload(np.stack(feedback), device) if feedback else None
        held = [self._turns, self._means, self._feedback]
        self.bytes = sum(each.nbytes for each in held if each is not None)

    def seal(self, arena: Arena, plan: MovePlan, mirror: TableMirror) -> bool:
        """Code and write; whether all could be sealed. Where not, no live cell has changed."""
        seals, each, device = plan.seals, self._layout.layers_per_group, arena.sealed.device
        group = mirror.group[seals.source[:, 0] // PAGE]
        modality = mirror.sealed_modality(plan).astype(np.int32)
        target = seals.target - 2 * self._layout.pages
        faults = torch.zeros(self._layout.groups, each, dtype=torch.int32, device=device)
        for own in np.unique(group).tolist():
            chosen = group == own
            layers = slice(own * each, (own + 1) * each)
            parts = (seals.source[chosen], target[chosen], modality[chosen])
            seal_cells(
                *(upload(part, device, torch.int32) for part in parts),
                arena.keys,
                arena.values,
                arena.sealed,
                self._format,
                SealTables(
                    self._turns[layers],
                    None if self._means is None else self._means[layers],
                    None if self._feedback is None else self._feedback[layers],
                ),
                faults[own],
            )
        return not bool(faults.any())
