"""Scattered live cells in a pool of NaN, what the attention kernels are handed, and the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from metal_kernels import attention
from metal_kernels.loader import Text
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import Listing, list_subblocks
from omni_core.paging.mirror import ListedPages, pack_occupancy
from omni_core.reference.attention import attention_shares, weighted_values
from tests.metal import numbers, runner
from tests.metal.sizes import Size

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


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

    def attention(self) -> attention.Attention:
        """What the launches are made of."""
        rows = attention.padded_listing(self.listing, self.query_order)
        size = self.size
        return attention.Attention(
            tables=len(self.queries),
            streams=size.streams,
            count=size.count,
            kv_heads=size.kv_heads,
            group=size.group,
            head_dim=size.head_dim,
            pages=len(self.order),
            dtype=size.dtype,
            rows=len(rows["rows"]),
            segments=len(rows["segments"]),
            programs=size.programs,
            biased=self.bias is not None,
        )

    def inputs(self) -> dict[str, npt.NDArray]:
        """What attention is handed: where no row is in use, rows of live-looking dead cells."""
        given = attention.padded_listing(self.listing, self.query_order)
        # Both halves of the pool's last page, in which nothing is alive.
        last = self.order.shape[0] * 2 - 1
        used = np.zeros(len(given["rows"]), np.bool_)
        for first, _, end, _ in self.listing.segments.tolist():
            used[first:end] = True
        given["rows"] = np.where(used[:, None], given["rows"], [(last - 1) + (last << 32), -1])
        return {
            **given,
            "queries": numbers.stored(self.queries, self.size.dtype),
            "keys": numbers.stored(self.keys, self.size.dtype),
            "values": numbers.stored(self.values, self.size.dtype),
            "order": self.order,
            "bias": attention.NO_BIAS if self.bias is None else self.bias,
            "numbers": attention.numbers(self.attention()),
            "scale": np.asarray([self.scale], np.float32),
        }

    def with_table_to_spare(self) -> Case:
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

    def _seen(self) -> tuple[Int64, Int64, Float64]:
        cells = np.concatenate(self.live)
        bias = np.zeros(cells.size) if self.bias is None else self.bias.reshape(-1)[cells]
        return cells, self.order.reshape(-1)[cells], bias.astype(np.float64)


def _repeated(case: Case, stream: int, cells: Int64) -> Float64:
    return np.repeat(_at(case.keys[stream], cells), case.size.group, axis=1)


def _at(arena: Float64, cells: Int64) -> Float64:
    """Cells ``[n, kv_heads, head_dim]`` of one stream's arena."""
    return arena[cells // PAGE, :, cells % PAGE]


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
    room = len(list_subblocks(of_pages, size.programs).rows) // size.programs + spare
    listing = list_subblocks(of_pages, size.programs, room)
    owner = shift[np.searchsorted(listed, cells // PAGE)]

    def drawn(*shape: int) -> Float64:
        plain = draw.standard_normal(shape, np.float32)
        return numbers.read(numbers.stored(plain, size.dtype), size.dtype)

    arena = size.streams, pages, size.kv_heads, PAGE, size.head_dim
    dead = ~live[None, :, None, :, None]
    counts = np.log(draw.integers(1, 9, live.shape)).astype(np.float32)
    heads = size.kv_heads * size.group
    return Case(
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


def attend(case: Case, texts: Mapping[str, Text] | None = None) -> tuple[Float64, Float64]:
    """What the kernels give: output ``[streams, T, q_heads, head_dim]``, and the sums.

    Args:
        case: what is attended.
        texts: of kernels by name, to be run in place of the shipped ones.
    """
    of, texts = case.attention(), texts or {}
    launch = attention.attend(of)
    found = runner.run(launch, case.inputs(), texts.get(launch.kernel.name))
    if of.programs > 1:
        programs = np.asarray([of.programs], np.int32)
        given = {"found": found["out"], "found_sums": found["sums"], "numbers": programs}
        found = runner.run(attention.merge(of), given, texts.get("merge"))
    return numbers.read(found["out"], of.dtype), found["sums"].astype(np.float64)


def spread(found: Float64, expected: Float64) -> float:
    """The largest ``|found - expected| / |expected|`` of a head of ``[streams, T, heads, dim]``."""
    gap = np.linalg.norm(found - expected, axis=(1, 3))
    return float((gap / np.linalg.norm(expected, axis=(1, 3))).max())
