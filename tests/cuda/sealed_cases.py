"""Sealed pages with holes, short subblocks and several modalities, and attention over them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.quantization import (
    LayerTables,
    SealedLayout,
    codec,
    decode_keys,
    decode_values,
    seal,
    store,
)
from omni_core.quantization.hadamard import hadamard
from omni_core.reference.attention import attention_shares, weighted_values
from omni_core.units import Modality
from omni_cuda.kernels.sealed_list import SealedList, codebook, undoing
from tests.cuda.sealed_listing import PREFILLS, SIZES, Size, listed

__all__ = ["PREFILLS", "SIZES", "Case", "Size", "make_case"]

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A layer's sealed pages as bytes, and their cells as they are decoded.

    Attributes:
        size: the shapes.
        layout: of the pages.
        queries: ``[tables, streams, T, q_heads, head_dim]`` as the dtype holds them.
        sealed: ``uint8[streams, pages, kv_heads, bytes]``, garbage where nothing is sealed.
        first: number of the first page.
        decoded: keys and values ``float64[streams, n, kv_heads, head_dim]`` of the live cells.
        table: ``int64[n]``, of each of them.
        bias: of the pool ``[first + pages, PAGE]``.
        cells: ``int64[n]``, their numbers in the pool.
        rotations: ``float32[modalities, kv_heads, head_dim, head_dim]``.
        key_means: ``float32[kv_heads, head_dim]``.
        listing: rows, segments and their rotations.
        programs: that it is dealt out to.
    """

    size: Size
    layout: SealedLayout
    queries: Float64
    sealed: npt.NDArray[np.uint8]
    first: int
    decoded: tuple[Float64, Float64]
    table: npt.NDArray[np.int64]
    bias: npt.NDArray[np.float32] | None
    cells: npt.NDArray[np.int64]
    rotations: npt.NDArray[np.float32]
    key_means: npt.NDArray[np.float32]
    listing: tuple[npt.NDArray[Any], ...]
    programs: int

    @property
    def scale(self) -> float:
        return float(self.size.head_dim) ** -0.5

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.size.dtype)

    def tensors(self, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, pages and rotations to be undone."""
        return (
            torch.from_numpy(self.queries).to(self.dtype).to(device),
            torch.from_numpy(self.sealed).to(device),
            undoing(torch.from_numpy(self.rotations), self.layout).to(device),
        )

    def more(self, device: str) -> dict[str, torch.Tensor | None]:
        """Means and codebook, where there are any."""
        at = torch.device(device)
        means = torch.from_numpy(self.key_means).to(at) if self.size.means else None
        return {
            "key_means": means,
            "levels": codebook(codec(self.size.codec, self.size.bits), at),
        }

    def sealed_list(self, device: str) -> SealedList:
        """The listing on a device."""
        rows, segments, kinds = (
            torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in self.listing
        )
        return SealedList(
            rows,
            segments,
            self.programs,
            None if self.bias is None else torch.from_numpy(self.bias).to(device),
            kinds,
            self.first,
            self.size.programs // self.programs,
        )

    def shares(self, stream: int) -> tuple[Float64, npt.NDArray[np.int64]]:
        """What each query gives each cell, table by table, and which cells those are."""
        runs, which = [], []
        for table, queries in enumerate(self.queries):
            mine = np.flatnonzero(self.table == table)
            runs.append((queries[stream], self.decoded[0][stream][mine]))
            which.append(mine)
        at = np.concatenate(which)
        cells = self.cells[at]
        bias = np.zeros(at.size) if self.bias is None else self.bias.reshape(-1)[cells]
        # Every query sees every cell.
        ages = np.ones(self.size.count, np.int64), np.zeros(at.size, np.int64)
        shares = attention_shares(runs, *ages, bias.astype(float), self.scale)
        return shares, at

    def attended(self) -> Float64:
        """The oracle's output, ``float64[streams, T, q_heads, head_dim]``."""
        found = []
        for stream in range(self.size.streams):
            shares, at = self.shares(stream)
            found.append(weighted_values(shares, self.decoded[1][stream][at]))
        return np.stack(found)

    def sums(self) -> Float64:
        """Log-sum-exp to base 2, ``float64[streams, T, q_heads]``."""
        bias = 0.0 if self.bias is None else self.bias.reshape(-1)[self.cells].astype(float)
        found = []
        for stream in range(self.size.streams):
            keys = np.repeat(self.decoded[0][stream], self.size.group, axis=1)
            each = np.einsum("athd,nhd->athn", self.queries[:, stream], keys) * self.scale + bias
            scores = each[self.table, :, :, np.arange(self.cells.size)] / np.log(2)
            found.append(np.logaddexp2.reduce(scores, axis=0, initial=-np.inf))
        return np.stack(found)


def make_case(size: Size, dealt: bool | None = None) -> Case:
    """Random numbers in random cells.

    Args:
        size: the shapes.
        dealt: whether rows are dealt out to programs, not cut between them; left out, those of a
            single query are.
    """
    draw = np.random.default_rng(list(size[:10]))
    chosen, layout = codec(size.codec, size.bits), SealedLayout(size.head_dim, size.bits)
    shape = (len(Modality), size.kv_heads, size.head_dim, size.head_dim)
    rotations = np.linalg.qr(draw.standard_normal(shape))[0].astype(np.float32)
    # Text keeps the rotation that is a matrix of Hadamard.
    rotations[0] = hadamard(size.head_dim)
    tables = LayerTables.uncalibrated(0, size.kv_heads, size.head_dim)
    means = draw.standard_normal((size.kv_heads, size.head_dim)).astype(np.float32)
    means *= size.means
    tables = replace(tables, rotations=rotations.swapaxes(0, 1), key_means=means)
    dealt = size.count == 1 if dealt is None else dealt
    sealed_cells, live_cells = _filled(draw, size.cells)
    subblocks = sealed_cells.size
    pages, first = (subblocks + 1) // 2 + 2, 3
    places = draw.permutation(pages * 2 - 2)[:subblocks]
    classes = draw.integers(0, size.tables * size.modalities, pages)
    classes[: size.tables * size.modalities] = np.arange(size.tables * size.modalities)[:pages]
    sealed = draw.integers(0, 256, (size.streams, pages, size.kv_heads, layout.bytes), np.uint8)
    occupancy = np.zeros(pages * 2, np.uint32)
    keys, values, cells, of_table = [], [], [], []
    for place, count, alive in zip(places, sealed_cells, live_cells, strict=True):
        page, half = divmod(int(place), 2)
        table, kind = divmod(int(classes[page]), size.modalities)
        live = np.sort(draw.permutation(count)[:alive])
        occupancy[place] = np.bitwise_or.reduce(np.uint32(1) << live.astype(np.uint32))
        cells.append((first + page) * PAGE + half * SUBBLOCK + live)
        of_table += [table] * alive
        for_streams = []
        for stream in range(size.streams):
            plain = draw.standard_normal((2, count, size.kv_heads, size.head_dim), np.float32)
            part = seal(plain[0], plain[1] * 2, Modality(kind), chosen, tables)
            store(part, layout, sealed[stream, page][: size.kv_heads], half)
            scales = sealed[stream, page].view(np.float16)
            for begin in (layout.key_scales, layout.value_scales):
                # Cells that are not alive may hold anything.
                held = scales[:, begin // 2 + half * SUBBLOCK :][:, :SUBBLOCK]
                held[:, np.setdiff1d(np.arange(SUBBLOCK), live)] = np.nan
            for_streams.append(
                [
                    decoded.astype(float).swapaxes(0, 1)[live]
                    for decoded in (
                        decode_keys(part, chosen, tables),
                        decode_values(part, Modality(kind), chosen, tables),
                    )
                ]
            )
        keys.append(np.stack([each[0] for each in for_streams]))
        values.append(np.stack([each[1] for each in for_streams]))
    cell = np.concatenate(cells)
    bias = None
    if size.bias:
        bias = np.full((first + pages, PAGE), np.nan, np.float32)
        bias.reshape(-1)[cell] = np.log(draw.integers(1, 9, cell.size))
    heads = size.kv_heads * size.group
    queries = draw.standard_normal((size.tables, size.streams, size.count, heads, size.head_dim))
    dtype = getattr(torch, size.dtype)
    queries = torch.from_numpy(queries).to(dtype).double().numpy()
    return Case(
        size,
        layout,
        queries,
        sealed,
        first,
        (np.concatenate(keys, axis=1), np.concatenate(values, axis=1)),
        np.array(of_table, np.int64),
        bias,
        cell.astype(np.int64),
        rotations,
        means,
        listed(size, dealt, places, classes, occupancy, first),
        size.programs if dealt else 1,
    )


def _filled(
    draw: np.random.Generator, cells: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cells that are sealed in each subblock, and those that are alive: so many in all."""
    sealed, live = [], []
    while cells:
        count = int(draw.choice([5, SUBBLOCK, SUBBLOCK]))
        alive = min(cells, int(draw.choice([1, count, count])))
        sealed.append(count)
        live.append(min(alive, count))
        cells -= live[-1]
    return np.array(sealed), np.array(live)
