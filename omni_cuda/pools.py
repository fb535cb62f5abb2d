"""Attention over cells of both pools: each part by itself, joined by log-sum-exp.

Sealed pages are decoded some at a time and stay rotated: queries are turned once to meet keys, and
what values of a modality add up to is turned back once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from omni_core.backend import PAGE
from omni_core.paging.mirror import LiveCells
from omni_core.paging.sealed_reads import read_together
from omni_core.units import Int8, Int32, Int64
from omni_cuda.arena import Arena, Cells
from omni_cuda.devices import upload
from omni_cuda.rotary import StepRotary, Turns, rotate
from omni_cuda.sealing import Sealer

_SCORES = 1 << 24
"""Scores held at once: a long prefill takes its queries in blocks."""
_PAGES = 32
"""Sealed pages that are decoded at a time."""
_PLAIN = -1


@dataclass(frozen=True)
class SealedPages:
    """Pages that one rotation of the queries reads, and whose values are of one modality.

    Attributes:
        pages: ``int64[n]``, counted from the first sealed one.
        live: ``bool[n * PAGE]``.
        bias: ``float32[n * PAGE]``.
        places: ``int64[m]``, of the live ones among all cells of the group.
        table: of the rotation.
        modality: of the values.
    """

    pages: torch.Tensor
    live: torch.Tensor
    bias: torch.Tensor
    places: torch.Tensor
    table: int
    modality: int


@dataclass(frozen=True)
class PoolsView:
    """What a layer group's attention reads and writes in one step, on the device.

    Attributes:
        write: cells of the ``T`` new tokens.
        read: the live cells of 16 bits, oldest first.
        order: ``int64[n]``, of those.
        bias: ``float32[n]``, of those.
        places: ``int64[n]``, of those among all cells of the group.
        sealed: the others; all queries see them.
        query_order: ``int64[T]``.
        turns: how queries are rotated; its runs are of the cells of 16 bits.
        first: the group's first layer.
        mass: ``float32[m]``, to which is added what each cell of the group gets; None where nobody
            asks.
    """

    write: Cells
    read: Cells
    order: torch.Tensor
    bias: torch.Tensor
    places: torch.Tensor
    sealed: tuple[SealedPages, ...]
    query_order: torch.Tensor
    turns: Turns
    first: int
    mass: torch.Tensor | None

    @staticmethod
    def of(
        written: Int32,
        live: LiveCells,
        query_order: Int64,
        rotary: StepRotary,
        modality: Int8,
        first: tuple[int, int],
        mass: torch.Tensor | None,
        device: torch.device,
    ) -> PoolsView:
        """Of a layer group; ``modality`` is of each page, ``first`` its layer and sealed page."""
        layer, page = first
        plain = live.cells < page * PAGE
        own = LiveCells(live.cells[plain], live.order[plain], live.bias[plain], live.shift[plain])
        sealed = list(read_together(live, np.flatnonzero(~plain), modality, _PAGES))
        runs = own.runs()
        # Tables are numbered over both pools.
        turns = rotary.turns([*runs, *((0, 0, shift) for *_, shift, _ in sealed)])
        tables = [table for _, _, table in turns.runs[len(runs) :]]
        return PoolsView(
            Cells.of(written, device),
            Cells.of(own.cells, device),
            upload(own.order, device),
            upload(own.bias, device),
            upload(np.flatnonzero(plain), device),
            tuple(
                SealedPages(
                    upload(pages - page, device, torch.int64),
                    upload(places.reshape(-1) >= 0, device),
                    upload(
                        np.where(places < 0, np.float32(0), live.bias[places]).reshape(-1), device
                    ),
                    upload(places[places >= 0], device),
                    table,
                    kind,
                )
                for (pages, places, _, kind), table in zip(sealed, tables, strict=True)
            ),
            upload(query_order, device),
            Turns(turns.cos, turns.sin, turns.runs[: len(runs)]),
            layer,
            mass,
        )


@dataclass(frozen=True)
class Pools:
    """A layer group's attention over both pools, on any device.

    Attributes:
        view: what is read and written.
        sealer: of the arena.
        keys: cosines and sines ``float32[T, 1, head_dim / 2]`` of the new keys.
    """

    view: PoolsView
    sealer: Sealer
    keys: tuple[torch.Tensor, torch.Tensor]

    def __call__(self, qkv: torch.Tensor, arena: Arena, layer: int) -> torch.Tensor:
        """See :data:`omni_cuda.backbone.Attend`."""
        kv_heads, head_dim = arena.keys.shape[3], arena.keys.shape[5]
        heads = qkv.unflatten(-1, (-1, head_dim))
        q_heads = heads.shape[2] - 2 * kv_heads
        queries, keys, values = heads.split([q_heads, kv_heads, kv_heads], 2)
        keys = rotate(keys, *self.keys)
        arena.write(layer, self.view.write, keys.transpose(0, 1), values.transpose(0, 1))
        return self._attend(queries, arena, layer).flatten(2)

    def _attend(self, queries: torch.Tensor, arena: Arena, layer: int) -> torch.Tensor:
        """``[streams, T, q_heads, head_dim]``, of queries of that shape that are not rotated."""
        view = self.view
        streams, count, q_heads, head_dim = queries.shape
        keys, values = (part.permute(1, 2, 0, 3).float() for part in arena.gather(layer, view.read))
        kv_heads, out = keys.shape[1], torch.empty_like(queries)
        most = max(keys.shape[2], _PAGES * PAGE)
        block = max(1, _SCORES // (streams * q_heads * most))
        for start in range(0, count, block):
            turned = view.turns.rotated(queries, start, start + block)
            grouped = turned.unflatten(3, (kv_heads, -1)).permute(0, 1, 3, 4, 2, 5)
            # A head's queries, all query heads of the first, then of the next.
            rows = grouped.flatten(3, 4) * head_dim**-0.5
            seen = view.order <= view.query_order[start : start + block, None]
            plain = self._plain(rows, keys, seen, values)
            sums: dict[int, _Sum] = {}
            for part in self._parts(plain, rows, arena, layer):
                sums.setdefault(part.rotation, _Sum()).add(part.scores, part.values())
            peak, total, mixed = self._joined(sums, layer)
            if view.mass is not None:
                for part in self._parts(plain, rows, arena, layer):
                    shares = (part.scores - peak).exp_().div_(total).sum((0, 1, 2))
                    view.mass.index_add_(0, part.places, shares[part.live])
            mixed = (mixed / total).view(streams, kv_heads, -1, turned.shape[2], head_dim)
            mixed = mixed.permute(0, 3, 1, 2, 4).flatten(2, 3)
            out[:, start : start + block] = mixed
        return out

    def _plain(
        self, rows: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor, values: torch.Tensor
    ) -> _Part:
        view, columns = self.view, keys.transpose(2, 3)
        found = [rows[table] @ columns[..., start:stop] for start, stop, table in view.turns.runs]
        scores = torch.cat(found, -1) + view.bias
        shape, (queries, cells) = scores.shape, seen.shape
        scores = scores.view(*shape[:2], -1, queries, cells).masked_fill_(~seen, -torch.inf)
        every = torch.ones(cells, dtype=torch.bool, device=rows.device)
        return _Part(_PLAIN, scores.view(shape), lambda: values, every, view.places)

    def _parts(self, plain: _Part, rows: torch.Tensor, arena: Arena, layer: int) -> Iterator[_Part]:
        """Scores of each part, one after another."""
        yield plain
        coded = rows @ self.sealer.turn
        for some in self.view.sealed:
            stored = arena.sealed[layer][:, some.pages]
            keys = self.sealer.keys(stored, self.view.first + layer)
            scores = coded[some.table] @ keys.transpose(2, 3) + some.bias
            scores = scores.masked_fill_(~some.live, -torch.inf)

            def values(stored: torch.Tensor = stored, some: SealedPages = some) -> torch.Tensor:
                return self.sealer.values(stored, some.live)

            yield _Part(some.modality, scores, values, some.live, some.places)

    def _joined(
        self, sums: dict[int, _Sum], layer: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Peak, and total weight and weighted values above it, of all parts together."""
        whole = _Sum()
        for rotation, part in sums.items():
            mixed = part.mixed
            if rotation != _PLAIN:
                mixed = self.sealer.undone(mixed, self.view.first + layer, rotation)
            whole.join(part.peak, part.total, mixed)
        # What sees nothing weighs nothing, and is 0 by any finite numbers.
        peak = whole.peak.masked_fill(torch.isneginf(whole.peak), 0.0)
        return peak, whole.total.masked_fill(whole.total == 0, 1.0), whole.mixed


@dataclass(frozen=True)
class _Part:
    """Cells that are attended at once.

    Attributes:
        rotation: the modality whose rotation values are in, or :data:`_PLAIN`.
        scores: ``float32[streams, kv_heads, rows, n]``, -inf where a cell is not seen.
        values: gives ``float32[streams, kv_heads, n, head_dim]``.
        live: ``bool[n]``.
        places: of the live ones among all cells of the group.
    """

    rotation: int
    scores: torch.Tensor
    values: Callable[[], torch.Tensor]
    live: torch.Tensor
    places: torch.Tensor


class _Sum:
    """A softmax over parts that come one by one.

    Attributes:
        peak, total: ``[streams, kv_heads, rows, 1]``: the highest score, and the sum of weights.
        mixed: ``[streams, kv_heads, rows, head_dim]``, values by their weights.
    """

    peak: torch.Tensor
    total: torch.Tensor
    mixed: torch.Tensor

    def __init__(self) -> None:
        self._empty = True

    def add(self, scores: torch.Tensor, values: torch.Tensor) -> None:
        """Take in cells, some of which each row sees or none."""
        peak = scores.amax(-1, keepdim=True)
        # Where nothing is seen, any finite ground keeps weights at exp(-inf) = 0.
        weights = (scores - peak.masked_fill(torch.isneginf(peak), 0.0)).exp_()
        self.join(peak, weights.sum(-1, keepdim=True), weights @ values)

    def join(self, peak: torch.Tensor, total: torch.Tensor, mixed: torch.Tensor) -> None:
        """Take in what was found elsewhere."""
        if self._empty:
            self.peak, self.total, self.mixed, self._empty = peak, total, mixed, False
            return
        higher = torch.maximum(self.peak, peak)
        ground = higher.masked_fill(torch.isneginf(higher), 0.0)
        kept, taken = (self.peak - ground).exp_(), (peak - ground).exp_()
        self.total = self.total * kept + total * taken
        self.mixed = self.mixed * kept + mixed * taken
        self.peak = higher
