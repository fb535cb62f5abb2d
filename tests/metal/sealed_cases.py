"""Cases of attention over pages of 16 bits and sealed ones, and what the kernels give of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metal_kernels import attention, sealed
from metal_kernels.launch import CONSTANT_BELOW, Launch
from metal_kernels.loader import Text
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import Listing, list_subblocks
from omni_core.paging.mirror import ListedPages, pack_occupancy
from omni_core.quantization import Codec, LayerTables, SealedLayout, codec, seal, store
from omni_core.quantization.hadamard import hadamard
from omni_core.reference.attention import attention_shares, weighted_values
from omni_core.reference.sealed import SealedCells
from omni_core.units import Modality
from tests import attended
from tests.attended import Float64, Int64
from tests.metal import cases, numbers, runner
from tests.metal.cases import Run
from tests.metal.numbers import AnyArray

FIRST = 3
"""Page number of the first sealed page."""


class Size(NamedTuple):
    """Shapes of a case: live cells of both kinds, queries, heads, and programs of sealed rows."""

    cells: int
    plain: int
    count: int
    kv_heads: int
    group: int
    head_dim: int
    bits: int = 2
    streams: int = 1
    tables: int = 1
    modalities: int = 1
    programs: int = 3
    bias: bool = True
    dtype: str = "float16"
    codec: str = "fitted"

    def __str__(self) -> str:
        return "-".join(map(str, self))


@dataclass(frozen=True)
class Case:
    """Sealed pages beside a case of 16-bit ones, whose queries they share.

    Attributes:
        size: the shapes.
        near: the 16-bit pages.
        codec, tables: of the sealed ones.
        pages: ``uint8[streams, pages, kv_heads, bytes]``, anything where nothing is sealed.
        coded: subblocks, of each stream, and the table that reads them.
        bias: ``float32[pages, PAGE]``, NaN of dead cells.
        listing: sealed rows alone.
    """

    size: Size
    near: cases.Case
    codec: Codec
    tables: LayerTables
    pages: npt.NDArray[np.uint8]
    coded: list[tuple[int, list[SealedCells]]]
    bias: npt.NDArray[np.float32] | None
    listing: Listing

    @property
    def layout(self) -> SealedLayout:
        return SealedLayout(self.size.head_dim, self.size.bits)

    def attention(self) -> sealed.SealedAttention:
        """What the launches are made of."""
        rows = sealed.sealed_listing(self.listing)
        return sealed.SealedAttention(
            plain=self.near.attention(),
            layout=self.layout,
            first=FIRST,
            pages=self.pages.shape[1],
            rows=len(rows["rows"]),
            programs=len(self.listing.modality),
            table=sealed.codebook(self.codec)[0],
            biased=self.bias is not None,
        )

    def inputs(self) -> dict[str, AnyArray]:
        """What attention over the sealed pages is handed."""
        of = self.attention()
        given = sealed.sealed_listing(self.listing)
        return {
            "queries": numbers.stored(self.near.queries, self.size.dtype),
            "sealed": self.pages,
            "rows": given["rows"],
            "segments": given["segments"],
            "bias": attention.NO_BIAS if self.bias is None else self.bias,
            "means": self.tables.key_means @ hadamard(self.size.head_dim),
            "levels": sealed.codebook(self.codec)[1],
            "numbers": sealed.numbers(of),
            "scale": attention.factor(self.near.scale),
        }

    def merged(self) -> dict[str, AnyArray]:
        """What their merge is handed beside what was found."""
        rotations = np.ascontiguousarray(self.tables.rotations.swapaxes(0, 1))
        return {
            "kinds": sealed.sealed_listing(self.listing)["kinds"],
            "rotations": rotations,
            "numbers": sealed.merge_numbers(self.attention()),
        }

    def attended(self) -> tuple[Float64, Float64]:
        """The oracle's output ``[streams, T, q_heads, head_dim]``, and its sums to base 2."""
        found = [self._attended(stream) for stream in range(self.size.streams)]
        out, sums = zip(*found, strict=True)
        return np.stack(out), np.stack(sums)

    def _attended(self, stream: int) -> tuple[Float64, Float64]:
        near = self.near
        parts: list[tuple[int, Float64, Float64, Int64, Float64]] = []
        for table, cells in enumerate(near.live):
            at = cells // PAGE, slice(None), cells % PAGE
            order = near.order.reshape(-1)[cells]
            bias = np.zeros(cells.size) if near.bias is None else near.bias.reshape(-1)[cells]
            keys, values = near.keys[stream][at], near.values[stream][at]
            parts.append((table, keys, values, order, bias.astype(float)))
        parts += [
            (table, *streams[stream].decoded(self.codec, self.tables))
            for table, streams in self.coded
        ]
        runs = [(near.queries[table][stream], keys) for table, keys, *_ in parts]
        values, order, bias = (np.concatenate(x) for x in list(zip(*parts, strict=True))[2:])
        shares = attention_shares(runs, near.query_order, order, bias, near.scale)
        scores = np.concatenate(
            [np.einsum("thd,nhd->thn", q, np.repeat(k, self.size.group, 1)) for q, k in runs], -1
        )
        hidden = np.where(np.less.outer(near.query_order, order), -np.inf, 0.0)[:, None]
        sums = (scores * near.scale + bias + hidden) / np.log(2)
        return weighted_values(shares, values), np.logaddexp2.reduce(sums, -1, initial=-np.inf)


def make_case(size: Size, blind: int = 0, tall: bool = False) -> Case:
    """Random numbers in random cells; ``blind`` queries are older than every 16-bit cell."""
    draw = np.random.default_rng(size[:10])
    own = attended.Size(
        size.plain, size.count, size.kv_heads, size.group, size.head_dim, size.streams, size.tables
    )._replace(bias=size.bias, dtype=size.dtype, programs=1 if size.count > 40 else size.tables + 2)
    near = cases.make_case(own, blind, kind=cases.TallCase if tall else cases.Case)
    chosen, tables = codec(size.codec, size.bits), _tables(draw, size)
    layout = SealedLayout(size.head_dim, size.bits)
    fill = _filled(draw, size.cells)
    pages = (len(fill) + 1) // 2 + 2
    stored = draw.integers(0, 256, (size.streams, pages, size.kv_heads, layout.bytes), np.uint8)
    occupancy = np.zeros((pages * 2, SUBBLOCK), np.bool_)
    table = draw.integers(0, len(near.queries), pages)
    kinds = draw.integers(0, size.modalities, pages)
    bias = np.full((pages, PAGE), np.nan, np.float32)
    coded = []
    for place, (count, live) in zip(draw.permutation(pages * 2 - 2), fill, strict=False):
        page, half = divmod(int(place), 2)
        occupancy[place, draw.permutation(count)[:live]] = True
        alive = occupancy[place]
        own_bias = np.log(draw.integers(1, 9, SUBBLOCK)) * size.bias
        bias[page, half * SUBBLOCK :][:SUBBLOCK][alive] = own_bias[alive]
        cells = []
        for stream in range(size.streams):
            pair = draw.standard_normal((2, count, size.kv_heads, size.head_dim), np.float32)
            part = seal(pair[0], pair[1] * 2, Modality(kinds[page]), chosen, tables)
            store(part, layout, stored[stream, page], half)
            scales = stored[stream, page].view(np.float16)
            for begin in (layout.key_scales, layout.value_scales):
                # Cells that are not alive may hold anything.
                held = scales[:, begin // 2 + half * SUBBLOCK :][:, :SUBBLOCK]
                held[:, ~alive] = np.nan
            order = np.full(SUBBLOCK, -1, np.int64)
            cells.append(SealedCells(part, Modality(kinds[page]), alive, order, own_bias))
        coded.append((int(table[page]), cells))
    listing = _listing(near, occupancy, table, kinds, size)
    return Case(size, near, chosen, tables, stored, coded, bias if size.bias else None, listing)


def attend(
    case: Case, texts: Mapping[str, Text] | None = None, run: Run | None = None
) -> tuple[Float64, Float64]:
    """What the kernels give of both kinds of pages: as :func:`tests.metal.cases.attend`."""
    of, texts = case.attention(), texts or {}

    def carry_out(launch: Launch, given: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        named = texts.get(launch.kernel.name)
        return run(launch, given) if run else runner.run(launch, given, named)

    near = carry_out(attention.attend(of.plain), case.near.inputs())
    found = carry_out(sealed.attend_sealed(of), case.inputs())
    sums = near["sums"].reshape(-1)
    short = max(0, CONSTANT_BELOW - sums.size)
    given = {
        "found": near["out"],
        "found_sums": np.pad(sums, (0, short), constant_values=np.nan),
        "sealed_found": found["out"],
        "sealed_sums": found["sums"],
        **case.merged(),
    }
    made = carry_out(sealed.merge_sealed(of), given)
    return numbers.read(made["out"], case.size.dtype), made["sums"].astype(np.float64)


def _tables(draw: np.random.Generator, size: Size) -> LayerTables:
    """Rotations of each head and modality, and means."""
    shape = size.kv_heads, len(Modality), size.head_dim, size.head_dim
    rotations, _ = np.linalg.qr(draw.standard_normal(shape))
    means = draw.standard_normal((size.kv_heads, size.head_dim)).astype(np.float32) * 0.3
    plain = LayerTables.uncalibrated(0, size.kv_heads, size.head_dim)
    return replace(plain, rotations=rotations.astype(np.float32), key_means=means)


def _filled(draw: np.random.Generator, cells: int) -> list[tuple[int, int]]:
    """Cells that are sealed in each subblock, and of these alive: so many in all."""
    found = []
    while cells:
        count = int(draw.choice([5, SUBBLOCK, SUBBLOCK]))
        alive = min(cells, int(draw.choice([1, count, count])))
        found.append((count, alive))
        cells -= alive
    return found


def _listing(near: cases.Case, occupancy: Any, table: Any, kinds: Any, size: Size) -> Listing:
    live = np.flatnonzero(occupancy.reshape(-1, PAGE).any(axis=1))
    if not live.size:
        # A page may be listed in which all cells have died.
        live = np.zeros(1, np.int64)
    shifts = near.listing.shifts if near.listing.shifts.size else np.zeros(1, np.int32)
    about = ListedPages(
        (live + FIRST).astype(np.int32),
        pack_occupancy(occupancy.reshape(-1, PAGE)[live]),
        shifts[table[live]],
        np.zeros(live.size, np.bool_),
        np.zeros((0, PAGE), np.int64),
        sealed=kinds[live].astype(np.int8),
    )
    parts = len(set(zip(table[live].tolist(), kinds[live].tolist(), strict=True)))
    dealt = sealed.sealed_programs(size.programs, parts)
    found = list_subblocks(about, 1, 0, dealt, len(live) + 1)
    # Counted among the tables of both kinds.
    found.segments[:, 3] = np.searchsorted(shifts, found.shifts)[found.segments[:, 3]]
    return found
