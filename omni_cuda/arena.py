"""The arena: a pool of pages for keys, one for values and one of sealed pages, allocated once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_core.backend import PAGE, ArenaLayout
from omni_core.errors import BudgetError
from omni_core.units import Int32
from omni_cuda.devices import require_room, upload

_REMEDY = "lower --budget"


@dataclass(frozen=True)
class Cells:
    """Cells as page and slot, ``int64[n]`` each, on the arena's device."""

    pages: torch.Tensor
    slots: torch.Tensor

    @staticmethod
    def of(cells: Int32, device: torch.device) -> Cells:
        """Cells numbered ``page * PAGE + slot``."""
        index = upload(cells, device, torch.int64)
        return Cells(index // PAGE, index % PAGE)


class Arena:
    """Keys and values ``[layers_per_group, streams, pages, kv_heads, PAGE, head_dim]``.

    Sealed pages are ``uint8[layers_per_group, streams, sealed_pages, kv_heads, bytes]``; without
    any, of 0 pages.

    Raises:
        BudgetError: the device cannot hold them.
    """

    def __init__(self, layout: ArenaLayout, device: torch.device, dtype: torch.dtype) -> None:
        self.bytes = layout.bytes(dtype.itemsize)
        what = f"the arena of {layout.all_pages} pages"
        require_room(self.bytes, device, what, _REMEDY)
        shape = (
            layout.layers_per_group,
            layout.streams,
            layout.pages,
            layout.kv_heads,
            PAGE,
            layout.head_dim,
        )
        sealed = layout.sealed.bytes if layout.sealed_pages else 0
        stored = (*shape[:2], layout.sealed_pages, layout.kv_heads, sealed)
        try:
            self.keys = torch.empty(shape, dtype=dtype, device=device)
            self.values = torch.empty(shape, dtype=dtype, device=device)
            # Whole pages are saved, with the halves that nothing was sealed in.
            self.sealed = torch.zeros(stored, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise BudgetError(f"{what} was refused by {device}; {_REMEDY}") from error

    def write(self, layer: int, cells: Cells, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store ``[n, streams, kv_heads, head_dim]`` of keys and values of a group's layer."""
        self.keys[layer][:, cells.pages, :, cells.slots] = keys
        self.values[layer][:, cells.pages, :, cells.slots] = values

    def gather(self, layer: int, cells: Cells) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[n, streams, kv_heads, head_dim]`` of a group's layer."""
        # Indices on both sides of a slice put the cell axis first.
        keys = self.keys[layer][:, cells.pages, :, cells.slots]
        return keys, self.values[layer][:, cells.pages, :, cells.slots]

    def copy(self, source: Cells, target: Cells) -> None:
        """Copy cells in every layer; all reads of a layer happen before its writes."""
        for layer in range(self.keys.shape[0]):
            self.write(layer, target, *self.gather(layer, source))
