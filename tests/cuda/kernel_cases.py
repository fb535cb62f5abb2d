"""Scattered live cells in a pool of NaN, what kernels are handed for them, and the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import Listing, list_subblocks
from omni_core.paging.mirror import ListedPages, pack_occupancy
from omni_core.reference.attention import attention_shares, weighted_values
from omni_cuda.kernels.attention import PageList


class Size(NamedTuple):
    """Shapes of a case, and the programs that its rows are dealt out to."""

    cells: int
    queries: int
    kv_heads: int
    group: int
    head_dim: int
    streams: int = 1
    tables: int = 1
    programs: int = 1
    bias: bool = True
    dtype: str = "float32"

    def __str__(self) -> str:
        return "-".join(map(str, self))


# Every two values of any two columns meet in some row.
SIZES = [
    Size(1, 1, 1, 7, 128, 1, 1, 1, True, "float16"),
    Size(1, 2, 2, 1, 64, 2, 3, 3, False, "float32"),
    Size(1, 5, 1, 4, 80, 2, 2, 5, True, "float32"),
    Size(1, 33, 1, 1, 64, 1, 3, 3, False, "float16"),
    Size(1, 33, 2, 3, 96, 1, 2, 1, False, "float16"),
    Size(1, 79, 1, 1, 64, 1, 1, 5, False, "float16"),
    Size(1, 79, 1, 8, 96, 2, 3, 1, True, "float16"),
    Size(31, 1, 2, 3, 128, 2, 2, 3, True, "float32"),
    Size(31, 2, 1, 3, 80, 1, 3, 5, False, "float16"),
    Size(31, 2, 1, 8, 128, 1, 2, 1, True, "float16"),
    Size(31, 5, 2, 1, 96, 1, 3, 5, True, "float16"),
    Size(31, 33, 1, 1, 80, 1, 3, 1, True, "float16"),
    Size(31, 33, 2, 7, 64, 2, 1, 1, True, "float16"),
    Size(31, 79, 1, 1, 64, 1, 3, 3, False, "float16"),
    Size(31, 79, 2, 4, 64, 1, 2, 1, False, "float32"),
    Size(32, 1, 1, 4, 96, 1, 1, 3, False, "float16"),
    Size(32, 2, 2, 7, 80, 2, 2, 1, True, "float32"),
    Size(32, 5, 1, 8, 128, 1, 3, 1, False, "float16"),
    Size(32, 33, 1, 1, 64, 1, 3, 5, False, "float32"),
    Size(32, 79, 1, 3, 128, 1, 2, 1, True, "float16"),
    Size(33, 1, 1, 1, 128, 1, 3, 5, False, "float32"),
    Size(33, 1, 1, 8, 64, 1, 3, 3, True, "float32"),
    Size(33, 2, 2, 4, 80, 2, 1, 1, True, "float16"),
    Size(33, 5, 1, 7, 96, 1, 3, 1, False, "float16"),
    Size(33, 33, 1, 8, 64, 1, 2, 1, False, "float16"),
    Size(33, 79, 1, 3, 128, 1, 1, 1, True, "float16"),
    Size(63, 1, 1, 1, 80, 1, 3, 3, False, "float16"),
    Size(63, 1, 1, 8, 64, 1, 3, 5, True, "float32"),
    Size(63, 2, 2, 3, 64, 2, 1, 1, True, "float32"),
    Size(63, 5, 1, 7, 96, 1, 3, 1, True, "float16"),
    Size(63, 33, 1, 4, 128, 1, 2, 1, False, "float16"),
    Size(63, 79, 1, 7, 128, 1, 3, 1, False, "float16"),
    Size(65, 1, 1, 7, 64, 1, 2, 5, True, "float16"),
    Size(65, 2, 2, 8, 80, 2, 3, 1, False, "float32"),
    Size(65, 5, 1, 3, 128, 1, 2, 3, True, "float16"),
    Size(65, 33, 1, 1, 96, 1, 1, 1, True, "float16"),
    Size(65, 79, 1, 4, 128, 1, 3, 1, False, "float16"),
    Size(1000, 1, 2, 8, 80, 1, 1, 5, False, "float32"),
    Size(1000, 2, 1, 1, 64, 1, 2, 3, True, "float16"),
    Size(1000, 2, 1, 7, 96, 1, 1, 3, False, "float32"),
    Size(1000, 5, 1, 3, 64, 2, 1, 1, False, "float32"),
    Size(1000, 33, 1, 4, 128, 1, 3, 1, False, "float16"),
    Size(1000, 79, 1, 1, 80, 1, 1, 1, False, "float16"),
]

# For a GPU: programs and dtype are to be filled in.
LARGE = [
    Size(2000, 1, 4, 7, 128, 2, 3),
    Size(2000, 2, 2, 8, 96, 1, 2, bias=False),
    Size(1000, 5, 1, 4, 80, 2, 3),
    Size(2000, 33, 2, 7, 128, 1, 3),
    Size(1000, 79, 8, 4, 64, 1, 2, bias=False),
    Size(2000, 300, 1, 7, 128, 1, 3),
]


@dataclass(frozen=True)
class Case:
    """Tensors on the CPU.

    Attributes:
        queries: ``[tables, streams, T, q_heads, head_dim]``.
        keys, values: ``[streams, pages, kv_heads, PAGE, head_dim]``, NaN in all dead cells.
        live: live cells of each table, ``int64[n]``.
        order, bias: ``[pages, PAGE]``; of dead cells any order, and NaN.
        query_order: ``int64[T]``.
        listing: the rows, with room to spare.
        programs: that the rows are dealt out to, or that cut them between them where ``dealt``
            is 1: where there is more than one query.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    live: list[np.ndarray]
    order: np.ndarray
    bias: np.ndarray | None
    query_order: np.ndarray
    listing: Listing
    programs: int

    @property
    def dealt(self) -> int:
        return self.programs if len(self.query_order) == 1 else 1

    @property
    def scale(self) -> float:
        return float(self.queries.shape[-1]) ** -0.5

    def with_table_to_spare(self) -> Case:
        """The same, with one more table of queries, all NaN, that no row names."""
        segments = self.listing.segments
        if self.dealt == 1:
            segments = np.concatenate([segments, np.zeros_like(segments[:1])])
        none = torch.full_like(self.queries[:1], float("nan"))
        return replace(
            self,
            queries=torch.cat([self.queries, none]),
            listing=replace(self.listing, segments=segments),
        )

    def page_list(self, device: str, spare: np.ndarray | None = None) -> PageList:
        """The listing on a device, and where no row is in use rows of live-looking dead cells.

        Args:
            spare: ``int64[2]``, a row to put behind the last instead.
        """
        listing = self.listing
        # Both halves of the pool's last page, in which nothing is alive.
        last = self.order.shape[0] * 2 - 1
        dead = np.asarray([(last - 1) + (last << 32), -1], np.int64)
        unused = np.ones(len(listing.rows), np.bool_)
        for first, _, end, _ in listing.segments.tolist():
            unused[first:end] = False
        rows = np.where(unused[:, None], dead, listing.rows)
        rows = np.concatenate([rows, (dead if spare is None else spare)[None]])

        def there(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return PageList(
            there(rows),
            there(listing.bounds),
            there(listing.segments),
            self.dealt,
            there(self.order),
            None if self.bias is None else there(self.bias),
            there(self.query_order),
            self.programs // self.dealt,
        )

    def shares(self, stream: int) -> np.ndarray:
        """What each query gives each live cell: ``float64[q_heads, T, n]``, table by table."""
        _, order, bias = self._seen()
        return attention_shares(list(self._runs(stream)), self.query_order, order, bias, self.scale)

    def attended(self) -> np.ndarray:
        """The oracle's output, ``float64[streams, T, q_heads, head_dim]``."""
        cells, _, _ = self._seen()
        return np.stack(
            [
                weighted_values(self.shares(stream), _at(self.values[stream], cells))
                for stream in range(self.keys.shape[0])
            ]
        )

    def sums(self) -> np.ndarray:
        """Log-sum-exp to base 2, ``float64[streams, T, q_heads]``; -inf where nothing is seen."""
        _, order, bias = self._seen()
        blind = np.where(np.less.outer(self.query_order, order), -np.inf, 0.0)
        found = []
        for stream in range(self.keys.shape[0]):
            group = self.queries.shape[3] // self.keys.shape[2]
            scores = np.concatenate(
                [np.einsum("thd,nhd->thn", q, k.repeat(group, 1)) for q, k in self._runs(stream)],
                axis=-1,
            )
            scores = scores * self.scale + bias + blind[:, None]
            found.append(np.logaddexp2.reduce(scores / np.log(2), axis=-1))
        return np.stack(found)

    def mass(self, left_out: int = 0) -> np.ndarray:
        """What each cell of the pool gets, ``float64[pages * PAGE]``.

        Args:
            left_out: so many of the last queries give nothing.
        """
        cells, _, _ = self._seen()
        mass = np.zeros(self.order.size)
        for stream in range(self.keys.shape[0]):
            shares = self.shares(stream)
            mass[cells] += shares[:, : shares.shape[1] - left_out].sum(axis=(0, 1))
        return mass

    def _seen(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cells = np.concatenate(self.live)
        bias = np.zeros(cells.size) if self.bias is None else self.bias.reshape(-1)[cells]
        return cells, self.order.reshape(-1)[cells], bias.astype(np.float64)

    def _runs(self, stream: int) -> Any:
        for table, cells in enumerate(self.live):
            queries = self.queries[table, stream].double().numpy()
            yield queries, _at(self.keys[stream], cells)


def _at(arena: torch.Tensor, cells: np.ndarray) -> np.ndarray:
    """Cells ``[n, kv_heads, head_dim]`` of one stream's arena."""
    return arena[cells // PAGE, :, cells % PAGE].double().numpy()


def make_case(size: Size, blind: int = 0, spare: int = 2, most: int = SUBBLOCK) -> Case:
    """Random numbers in random cells.

    Args:
        size: the shapes.
        blind: queries that are older than every cell; if 0, about half of the pages are older than
            every query.
        spare: rows that each program has room for and no use.
        most: live cells in a subblock.
    """
    draw = np.random.default_rng(size[:8])
    cells = _cells(draw, size.cells, most)
    count = int(cells.max()) // PAGE + 3
    listed = np.unique(cells // PAGE)
    live = np.zeros((count, PAGE), np.bool_)
    live.reshape(-1)[cells] = True
    old, middle = 10, 10 + count * PAGE
    order = draw.permutation(count * PAGE).reshape(count, PAGE)
    newer = draw.random(count) < (1.0 if blind else 0.5)
    order = np.where(live, order + np.where(newer, middle, old)[:, None], order % 3)
    query_order = np.sort(draw.integers(middle, middle + count * PAGE, size.queries))
    query_order[:blind] = np.arange(blind)
    query_order[-1] = order.max()
    shifts = np.sort(draw.choice(9000, size.tables, replace=False))
    which = np.append(np.arange(size.tables), draw.integers(0, size.tables, count))
    shift = shifts[which[: listed.size]].astype(np.int32)
    checked = np.where(live, order, 0)[listed].max(axis=1) > query_order[0]
    pages = ListedPages(
        listed.astype(np.int32),
        pack_occupancy(live[listed]),
        shift,
        checked,
        order[listed][checked],
    )
    dealt = size.programs if size.queries == 1 else 1
    room = len(list_subblocks(pages, dealt).rows) // dealt + spare
    listing = list_subblocks(pages, dealt, room)
    owner = shift[np.searchsorted(listed, cells // PAGE)]
    dtype = getattr(torch, size.dtype)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draw.standard_normal(shape).astype(np.float32)).to(dtype)

    arena = size.streams, count, size.kv_heads, PAGE, size.head_dim
    dead = torch.from_numpy(~live)[None, :, None, :, None]
    heads = size.kv_heads * size.group
    counts = np.log(draw.integers(1, 9, live.shape)).astype(np.float32)
    return Case(
        numbers(listing.shifts.size, size.streams, size.queries, heads, size.head_dim),
        numbers(*arena).masked_fill_(dead, float("nan")),
        numbers(*arena).masked_fill_(dead, float("nan")),
        [np.sort(cells[owner == each]) for each in listing.shifts],
        order.astype(np.int64),
        np.where(live, counts, np.float32(np.nan)) if size.bias else None,
        query_order.astype(np.int64),
        listing,
        size.programs,
    )


def _cells(draw: np.random.Generator, count: int, most: int) -> np.ndarray:
    """So many cells with holes between them, in scattered subblocks of which some are full."""
    subblocks = 4 + 4 * count // most
    fill = np.minimum(draw.choice([3, 17, SUBBLOCK], subblocks), most)
    rank = np.where(draw.random(subblocks) < 0.4, -1, fill)
    lane = draw.permuted(np.tile(np.arange(SUBBLOCK), (subblocks, 1)), axis=1)
    open_cells = np.flatnonzero(lane < rank[:, None])
    if open_cells.size < count:
        return _cells(draw, count, most)
    # Whole subblocks first, in random order: what is left out is left out of the last ones.
    block = draw.permutation(subblocks)[open_cells // SUBBLOCK]
    return open_cells[np.argsort(block, kind="stable")[:count]]


def spread(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest ``|found - expected| / |expected|`` of a head of ``[streams, T, heads, dim]``."""
    gap = np.linalg.norm(found - expected, axis=(1, 3))
    return float((gap / np.linalg.norm(expected, axis=(1, 3))).max())
