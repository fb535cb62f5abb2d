"""What attention is measured on: caches in scattered pages, the same cells side by side, the gate.

All that is not alive is NaN, so that a kernel which reads it is found out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.live_cells import Live, Shape
from omni_core.backend import PAGE
from omni_core.paging.listing import ListedPages, list_subblocks
from omni_core.paging.mirror import pack_occupancy
from omni_cuda.devices import upload
from omni_cuda.kernels.attention import PageList
from omni_cuda.kernels.launching import roomy
from omni_cuda.kernels.tiling import Split, split

BOUND = 1e-2
"""Relative error of a head's output that bfloat16 may have."""
_SCORES = 1 << 28
"""Bytes of scores that the reference computes at a time."""


@dataclass(frozen=True)
class Case:
    """Caches of some layers, queries to each, and what is alive, on the device.

    Attributes:
        shape, live: of what.
        queries: ``[layers, 1, 1, T, q_heads, head_dim]``.
        keys, values: ``[layers, 1, pages, kv_heads, PAGE, head_dim]``.
        pages: the listing that the kernel reads.
    """

    shape: Shape
    live: Live
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    pages: PageList

    @property
    def layers(self) -> int:
        """How many there are."""
        return self.keys.shape[0]

    @property
    def scale(self) -> float:
        """Factor on the dot products."""
        return float(self.shape.head_dim**-0.5)

    def contiguous(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of a layer's live keys and values by order: ``[1, kv_heads, cells, head_dim]``."""
        device = self.keys.device
        pages = upload(self.live.pages, device, torch.int64)
        cells = upload(np.flatnonzero(self.live.alive), device)
        keys, values = (
            part[layer, 0][pages].transpose(0, 1).flatten(1, 2)[:, cells].unsqueeze(0)
            for part in (self.keys, self.values)
        )
        return keys, values

    def error(self, layer: int, out: torch.Tensor) -> float:
        """Relative error of the worst head of ``[T, q_heads, head_dim]``; infinite where NaN."""
        reference = expected(self.queries[layer, 0, 0], *self.contiguous(layer), self.scale)
        gap = (out.float() - reference).norm(dim=(0, 2)) / reference.norm(dim=(0, 2))
        return float(gap.nan_to_num(nan=float("inf")).max())


def build(
    shape: Shape,
    live: Live,
    layers: int,
    device: torch.device,
    processors: int,
    dtype: torch.dtype = torch.bfloat16,
) -> Case:
    """A case of fresh random numbers, for a card of so many multiprocessors."""
    count = live.query_order.size
    queries = torch.randn(
        layers, 1, 1, count, shape.q_heads, shape.head_dim, dtype=dtype, device=device
    )
    size = (layers, 1, live.arena, shape.kv_heads, PAGE, shape.head_dim)
    dead = np.ones((live.arena, PAGE), np.bool_)
    dead[live.pages] = ~live.alive
    mask = upload(dead, device).view(1, 1, live.arena, 1, PAGE, 1)
    keys, values = (
        torch.randn(size, dtype=dtype, device=device).masked_fill_(mask, float("nan"))
        for _ in range(2)
    )
    sizes = count, shape.group, shape.kv_heads, dtype.itemsize, processors
    pages = page_list(live, split(*sizes, roomy=roomy(device)), device)
    return Case(shape, live, queries, keys, values, pages)


def page_list(live: Live, cut: Split, device: torch.device) -> PageList:
    """The listing of what is alive, on the device."""
    order, query_order = live.order, live.query_order
    checked = (live.alive & (order > query_order[0])).any(axis=1)
    occupancy, shift = pack_occupancy(live.alive), np.zeros(live.pages.size, np.int32)
    listed = ListedPages(live.pages, occupancy, shift, checked, order[checked])
    listing = list_subblocks(listed, cut.programs)
    orders = np.zeros((live.arena, PAGE), np.int64)
    orders[live.pages] = order
    # The kernel loads a row ahead of the one that it works on.
    rows = np.pad(listing.rows, [(0, 1), (0, 0)])
    return PageList(
        upload(rows, device),
        upload(listing.bounds, device),
        upload(listing.segments, device),
        cut.programs,
        upload(orders, device),
        None,
        upload(query_order, device),
        cut.shares,
    )


def expected(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """The last tokens' attention over all up to themselves, in float32.

    Args:
        queries: ``[T, q_heads, head_dim]``, of the newest ``T`` of the keys, or of one that sees
            all.
        keys, values: ``[1, kv_heads, n, head_dim]``, by order.
        scale: factor on the dot products.

    Returns:
        ``float32[T, q_heads, head_dim]``.
    """
    count, q_heads, head_dim = queries.shape
    _, kv_heads, cells, _ = keys.shape
    group = q_heads // kv_heads
    at = torch.arange(cells, device=keys.device)
    out = torch.empty(count, q_heads, head_dim, device=keys.device)
    step = max(1, _SCORES // (4 * group * cells))
    for head in range(kv_heads):
        k, v = keys[0, head].float(), values[0, head].float()
        heads = slice(head * group, (head + 1) * group)
        for start in range(0, count, step):
            q = queries[start : start + step, heads].float()
            scores = torch.einsum("tgd,nd->tgn", q, k) * scale
            last = torch.arange(start, start + q.shape[0], device=keys.device) + cells - count
            scores.masked_fill_(at > last[:, None, None], float("-inf"))
            out[start : start + step, heads] = torch.einsum("tgn,nd->tgd", scores.softmax(-1), v)
    return out
