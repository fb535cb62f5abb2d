"""A layer group's attention that reads its pages in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_cuda.arena import Arena
from omni_cuda.kernels.attention import PageList, attend_pages
from omni_cuda.kernels.mass import add_mass
from omni_cuda.kernels.store import rotate_and_store
from omni_cuda.sealed_paged import SealedPart


@dataclass(frozen=True)
class Paged:
    """Attention of one step, on the device.

    Attributes:
        pages: what is alive, the new tokens included.
        cells: ``int32[T]``, of the new tokens; -1 for padding.
        cos, sin: ``float32[m + 1, T, head_dim / 2]``: for the new keys, then for the queries of
            each of the listing's shifts.
        mass: ``float32[pages * PAGE]``, to which is added what each cell gets, summed over queries,
            heads and streams; None where nobody asks.
        sealed: the sealed pages; None in an arena without any. Their cells get no mass.
    """

    pages: PageList
    cells: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    mass: torch.Tensor | None = None
    sealed: SealedPart | None = None

    def __call__(self, qkv: torch.Tensor, arena: Arena, layer: int) -> torch.Tensor:
        """See :data:`omni_cuda.backbone.Attend`."""
        keys, values = arena.keys[layer], arena.values[layer]
        (streams, count, wide), kv_heads, head_dim = qkv.shape, keys.shape[2], keys.shape[4]
        q_heads = wide // head_dim - 2 * kv_heads
        shape = (self.cos.shape[0] - 1, streams, count, q_heads, head_dim)
        queries, scale = qkv.new_empty(shape), head_dim**-0.5
        rotate_and_store(qkv, self.cos, self.sin, self.cells, keys, values, queries)
        if self.sealed is not None:
            return self.sealed.attend(queries, arena, layer, self.pages, scale).flatten(2)
        if self.mass is None:
            return attend_pages(queries, keys, values, self.pages, scale).flatten(2)
        sums = torch.empty(shape[1:4], dtype=torch.float32, device=qkv.device)
        out = attend_pages(queries, keys, values, self.pages, scale, sums=sums)
        # Padding pays no attention.
        sums.masked_fill_((self.cells < 0)[None, :, None], float("-inf"))
        add_mass(queries, keys, self.pages, scale, sums, self.mass)
        return out.flatten(2)
