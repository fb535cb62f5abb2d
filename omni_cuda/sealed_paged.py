"""A layer group's attention that reads pages of both pools in place: one softmax over all cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from omni_core.backend import ArenaLayout
from omni_core.quantization import LayerTables, codec
from omni_cuda.arena import Arena
from omni_cuda.devices import upload
from omni_cuda.kernels.attention import PageList, find_in_pages
from omni_cuda.kernels.merge import merge_shares
from omni_cuda.kernels.sealed_attention import attend_sealed
from omni_cuda.kernels.sealed_list import SealedList, codebook, undoing


class SealedReader:
    """What kernels need of an arena's sealed pages besides their bytes.

    Args:
        layout: of an arena that has some.
        tables: of each layer of the model.
        device: where the arena is.

    Attributes:
        layout: of a page.
        rotations: to be undone, ``float16[layers, modalities, kv_heads, padded, padded]``.
        key_means: ``float32[layers, kv_heads, head_dim]``; None where all are 0.
        levels: of :func:`omni_cuda.kernels.sealed_list.codebook`.
        bytes: of these on the device.
    """

    def __init__(
        self, layout: ArenaLayout, tables: Sequence[LayerTables], device: torch.device
    ) -> None:
        self.layout = layout.sealed
        turns = [upload(each.rotations.swapaxes(0, 1), device) for each in tables]
        self.rotations = torch.stack([undoing(each, self.layout) for each in turns])
        means = np.stack([each.key_means for each in tables])
        self.key_means = upload(means, device) if means.any() else None
        self.levels = codebook(codec(layout.codec, layout.bits), device)
        held = [self.rotations, self.key_means, self.levels]
        self.bytes = sum(each.nbytes for each in held if each is not None)


@dataclass(frozen=True)
class SealedPart:
    """The sealed pages of one step of a layer group.

    Attributes:
        pages: what is alive.
        reader: of the arena.
        first: the group's first layer.
        segments: of the cells of 16 bits, then of these; None where rows are not dealt out.
    """

    pages: SealedList
    reader: SealedReader
    first: int
    segments: torch.Tensor | None

    def attend(
        self, queries: torch.Tensor, arena: Arena, layer: int, plain: PageList, scale: float
    ) -> torch.Tensor:
        """Each query over the cells of both pools; exactly 0 where it sees none.

        Args:
            queries: ``[tables, streams, T, q_heads, head_dim]``, rotated for each table of shifts.
            arena: with the new tokens in it.
            layer: of the group.
            plain: the live cells of 16 bits.
            scale: factor on the dot products.

        Returns:
            ``[streams, T, q_heads, head_dim]`` in the queries' dtype.
        """
        reader, own = self.reader, plain.programs * plain.shares
        shape = (own + self.pages.programs * self.pages.shares, *queries.shape[1:4])
        found = queries.new_empty((*shape, queries.shape[4]), dtype=torch.float32)
        sums = queries.new_empty(shape, dtype=torch.float32)
        keys, values = arena.keys[layer], arena.values[layer]
        find_in_pages(queries, keys, values, plain, scale, found[:own], sums[:own])
        number = self.first + layer
        attend_sealed(
            queries,
            arena.sealed[layer],
            self.pages,
            reader.layout,
            reader.rotations[number],
            scale,
            found[own:],
            sums[own:],
            key_means=None if reader.key_means is None else reader.key_means[number],
            levels=reader.levels,
        )
        out = torch.empty_like(queries[0])
        merge_shares(found, sums, self.segments, out)
        return out
