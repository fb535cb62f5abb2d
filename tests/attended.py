"""Scattered live cells in a pool of NaN, what attention over them gives, and shapes to try."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import Listing, list_subblocks
from omni_core.paging.mirror import ListedPages, pack_occupancy
from omni_core.reference.attention import attention_shares, weighted_values
from tests.metal import numbers

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


class StoreSize(NamedTuple):
    """Shapes of new tokens that are rotated and stored."""

    tokens: int
    streams: int
    kv_heads: int
    group: int
    head_dim: int
    tables: int
    dtype: str


class Size(NamedTuple):
    """Shapes of a case, and the programs that its rows are dealt out to."""

    cells: int
    count: int
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
    Size(1, 1, 1, 7, 64, 1, 2, 5, True, "float32"),
    Size(1, 2, 1, 8, 128, 1, 1, 3, True, "float16"),
    Size(1, 5, 2, 4, 96, 2, 3, 1, False, "float32"),
    Size(1, 33, 1, 1, 80, 1, 1, 3, True, "bfloat16"),
    Size(1, 33, 1, 8, 80, 1, 1, 5, True, "bfloat16"),
    Size(1, 79, 1, 3, 64, 2, 2, 1, True, "bfloat16"),
    Size(31, 1, 1, 8, 96, 1, 2, 1, True, "float32"),
    Size(31, 2, 2, 3, 96, 2, 1, 3, False, "float16"),
    Size(31, 5, 1, 1, 64, 1, 1, 3, False, "float16"),
    Size(31, 33, 1, 4, 64, 1, 2, 5, False, "bfloat16"),
    Size(31, 79, 2, 7, 80, 1, 3, 1, False, "float16"),
    Size(31, 79, 1, 8, 128, 1, 2, 5, True, "float32"),
    Size(32, 1, 1, 1, 96, 1, 1, 1, True, "bfloat16"),
    Size(32, 1, 1, 7, 64, 1, 2, 5, False, "float32"),
    Size(32, 2, 1, 3, 80, 1, 2, 5, False, "float32"),
    Size(32, 5, 2, 8, 128, 1, 3, 1, True, "bfloat16"),
    Size(32, 5, 1, 3, 64, 1, 1, 3, False, "bfloat16"),
    Size(32, 33, 2, 4, 80, 2, 1, 3, False, "bfloat16"),
    Size(32, 79, 1, 4, 128, 2, 2, 5, True, "float16"),
    Size(33, 1, 1, 4, 80, 2, 1, 3, False, "float16"),
    Size(33, 2, 2, 8, 64, 2, 3, 1, False, "bfloat16"),
    Size(33, 5, 1, 7, 128, 1, 2, 5, True, "float32"),
    Size(33, 33, 1, 3, 96, 1, 1, 5, True, "float32"),
    Size(33, 79, 1, 1, 80, 2, 3, 1, False, "float16"),
    Size(63, 1, 2, 3, 80, 1, 1, 3, False, "bfloat16"),
    Size(63, 2, 2, 1, 64, 2, 2, 5, False, "float32"),
    Size(63, 5, 1, 8, 128, 1, 3, 1, True, "float32"),
    Size(63, 33, 1, 7, 64, 1, 1, 1, True, "float16"),
    Size(63, 79, 1, 4, 96, 1, 1, 3, False, "float16"),
    Size(65, 1, 1, 8, 128, 1, 2, 5, True, "bfloat16"),
    Size(65, 2, 1, 4, 64, 1, 3, 1, True, "bfloat16"),
    Size(65, 5, 1, 7, 80, 2, 2, 5, True, "float16"),
    Size(65, 33, 1, 1, 128, 1, 3, 1, False, "float16"),
    Size(65, 79, 2, 3, 96, 1, 1, 3, False, "float32"),
    Size(1000, 1, 2, 3, 128, 2, 3, 1, False, "float16"),
    Size(1000, 1, 2, 8, 80, 1, 2, 5, False, "float32"),
    Size(1000, 1, 1, 4, 96, 1, 3, 1, True, "bfloat16"),
    Size(1000, 2, 2, 7, 96, 2, 2, 5, True, "bfloat16"),
    Size(1000, 5, 1, 7, 64, 1, 1, 3, True, "float32"),
    Size(1000, 33, 1, 1, 80, 1, 3, 1, True, "bfloat16"),
    Size(1000, 79, 1, 1, 96, 1, 2, 5, False, "float16"),
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
    """Numbers as the dtype holds them, in float64.

    Attributes:
        size: the shapes.
        queries: ``[tables, streams, T, q_heads, head_dim]``.
        keys, values: ``[streams, pages, kv_heads, PAGE, head_dim]``, NaN in all dead cells.
        live: live cells of each table, ``int64[n]``.
        order: ``int64[pages, PAGE]``, of dead cells any.
        bias: ``float32[pages, PAGE]``, of dead cells NaN.
        query_order: ``int64[T]``.
        listing: the rows, with room to spare.
    """

    size: Size
    queries: Float64
    keys: Float64
    values: Float64
    live: list[Int64]
    order: Int64
    bias: npt.NDArray[np.float32] | None
    query_order: Int64
    listing: Listing

    @property
    def scale(self) -> float:
        return float(self.size.head_dim) ** -0.5

    def with_table_to_spare(self) -> Self:
        """The same, with one more table of queries, all NaN, that no row names."""
        none = np.full_like(self.queries[:1], np.nan)
        return replace(self, queries=np.concatenate([self.queries, none]))

    def shares(self, stream: int) -> Float64:
        """What each query gives each live cell: ``float64[q_heads, T, n]``, table by table."""
        _, order, bias = self._seen()
        runs = [
            (queries[stream], _at(self.keys[stream], some))
            for queries, some in zip(self.queries, self.live, strict=False)
        ]
        return attention_shares(runs, self.query_order, order, bias, self.scale)

    def attended(self) -> Float64:
        """The oracle's output, ``float64[streams, T, q_heads, head_dim]``."""
        cells, _, _ = self._seen()
        return np.stack(
            [
                weighted_values(self.shares(stream), _at(self.values[stream], cells))
                for stream in range(self.size.streams)
            ]
        )

    def sums(self) -> Float64:
        """Log-sum-exp to base 2, ``float64[streams, T, q_heads]``; -inf where nothing is seen."""
        _, order, bias = self._seen()
        blind = np.where(np.less.outer(self.query_order, order), -np.inf, 0.0)
        found = []
        for stream in range(self.size.streams):
            scores = [
                np.einsum("thd,nhd->thn", q[stream], _repeated(self, stream, some))
                for q, some in zip(self.queries, self.live, strict=False)
            ]
            all_scores = np.concatenate(scores, axis=-1) * self.scale + bias + blind[:, None]
            found.append(np.logaddexp2.reduce(all_scores / np.log(2), axis=-1, initial=-np.inf))
        return np.stack(found)

    def mass(self, left_out: int = 0) -> Float64:
        """What each cell of the pool gets, ``float64[pages * PAGE]``.

        Args:
            left_out: so many of the last queries give nothing.
        """
        gets = np.zeros(self.order.size)
        for stream in range(self.size.streams):
            shares = self.shares(stream)
            given = shares[:, : shares.shape[1] - left_out].sum(axis=(0, 1))
            gets[np.concatenate(self.live)] += given
        return gets

    def _seen(self) -> tuple[Int64, Int64, Float64]:
        cells = np.concatenate(self.live)
        bias = np.zeros(cells.size) if self.bias is None else self.bias.reshape(-1)[cells]
        return cells, self.order.reshape(-1)[cells], bias.astype(np.float64)


AnyCase = TypeVar("AnyCase", bound=Case)


def _repeated(case: Case, stream: int, cells: Int64) -> Float64:
    return np.repeat(_at(case.keys[stream], cells), case.size.group, axis=1)


def _at(arena: Float64, cells: Int64) -> Float64:
    """Cells ``[n, kv_heads, head_dim]`` of one stream's arena."""
    return arena[cells // PAGE, :, cells % PAGE]


def make_case(
    size: Size,
    kind: type[AnyCase],
    *,
    dealt: int | None = None,
    blind: int = 0,
    spare: int = 2,
    most: int = SUBBLOCK,
) -> AnyCase:
    """Random numbers in random cells.

    Args:
        size: the shapes.
        kind: of case.
        dealt: programs that the rows are dealt out to, if not the size's.
        blind: queries that are older than every cell; if 0, about half of the pages are older than
            every query.
        spare: rows that each program has room for and no use.
        most: live cells in a subblock.
    """
    draw = np.random.default_rng(size[:8])
    cells = _scattered(draw, size.cells, most)
    pages = int(cells.max(initial=0)) // PAGE + 3
    live = np.zeros((pages, PAGE), np.bool_)
    live.reshape(-1)[cells] = True
    middle = 10 + pages * PAGE
    newer = draw.random(pages) < (1.0 if blind else 0.5)
    order = draw.permutation(pages * PAGE).reshape(pages, PAGE) + 10
    order = np.where(live, order + np.where(newer, middle, 0)[:, None], order % 3)
    query_order = np.sort(draw.integers(middle, middle + pages * PAGE, size.count))
    query_order[:blind] = np.arange(blind)
    query_order[-1] = order.max()
    listed = np.unique(cells // PAGE)
    shifts = np.sort(draw.choice(9000, size.tables, replace=False))
    which = np.append(np.arange(size.tables), draw.integers(0, size.tables, pages))
    shift = shifts[which[: listed.size]].astype(np.int32)
    checked = np.where(live, order, 0)[listed].max(axis=1, initial=0) > query_order[0]
    of_pages = ListedPages(
        listed.astype(np.int32),
        pack_occupancy(live[listed]),
        shift,
        checked,
        order[listed][checked],
    )
    dealt = dealt or size.programs
    room = len(list_subblocks(of_pages, dealt).rows) // dealt + spare
    listing = list_subblocks(of_pages, dealt, room)
    owner = shift[np.searchsorted(listed, cells // PAGE)]

    def drawn(*shape: int) -> Float64:
        plain = draw.standard_normal(shape, np.float32)
        return numbers.read(numbers.stored(plain, size.dtype), size.dtype)

    arena = size.streams, pages, size.kv_heads, PAGE, size.head_dim
    dead = ~live[None, :, None, :, None]
    counts = np.log(draw.integers(1, 9, live.shape)).astype(np.float32)
    heads = size.kv_heads * size.group
    return kind(
        size,
        drawn(max(1, listing.shifts.size), size.streams, size.count, heads, size.head_dim),
        np.where(dead, np.nan, drawn(*arena)),
        np.where(dead, np.nan, drawn(*arena)),
        [np.sort(cells[owner == each]) for each in listing.shifts],
        order.astype(np.int64),
        np.where(live, counts, np.float32(np.nan)) if size.bias else None,
        query_order.astype(np.int64),
        listing,
    )


def _scattered(draw: np.random.Generator, count: int, most: int) -> Int64:
    """So many cells with holes between them, in scattered subblocks of which some are full."""
    subblocks = 4 + 4 * count // most
    fill = np.minimum(draw.choice([3, 17, SUBBLOCK], subblocks), most)
    taken = np.where(draw.random(subblocks) < 0.4, 0, fill)
    if taken.sum() < count:
        return _scattered(draw, count, most)
    left_out = np.minimum(np.maximum(np.cumsum(taken) - count, 0), taken)
    places = [
        block * SUBBLOCK + draw.permutation(SUBBLOCK)[:some]
        for block, some in zip(draw.permutation(subblocks), taken - left_out, strict=True)
    ]
    return np.concatenate(places)


def spread(found: Float64, expected: Float64) -> float:
    """The largest ``|found - expected| / |expected|`` of a head of ``[streams, T, heads, dim]``."""
    gap = np.linalg.norm(found - expected, axis=(1, 3))
    return float((gap / np.linalg.norm(expected, axis=(1, 3))).max())
