"""Attention over cells of both pools: each part by itself, joined by log-sum-exp.

Sealed pages are decoded some at a time and stay rotated: queries are turned once to meet keys, and
what values of a modality add up to is turned back once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from omni_core.backend import PAGE, StepPlan
from omni_core.model_config import TextConfig
from omni_core.paging.mirror import LiveCells, TableMirror
from omni_core.paging.sealed_reads import read_together
from omni_core.units import Int8, Int32
from omni_mlx.arena import Arena
from omni_mlx.attention import SCORES, Orders
from omni_mlx.rotary import StepRotary, Turns, rotate
from omni_mlx.sealing import Sealer

_PAGES = 32
"""Sealed pages that are decoded at a time."""
_PLAIN = -1


@dataclass(frozen=True)
class SealedPages:
    """Pages that one rotation of the queries reads, and whose values are of one modality.

    Attributes:
        pages: ``int32[n]``, counted from the first sealed one.
        live: ``bool[n * PAGE]``.
        bias: ``float32[n * PAGE]``.
        places: ``int32[n * PAGE]``, of the live ones among all cells of the group; behind its last
            of those that are dead.
        table: of the rotation.
        modality: of the values.
    """

    pages: mx.array
    live: mx.array
    bias: mx.array
    places: mx.array
    table: int
    modality: int


@dataclass(frozen=True)
class _Group:
    """What a layer group's attention reads and writes.

    Attributes:
        write: rows of the new tokens.
        read: rows of the live cells of 16 bits, oldest first.
        places: of those among all cells of the group.
        sight: orders and biases of those; all queries see the sealed ones.
        turns: how queries are rotated; its runs are of the cells of 16 bits.
    """

    write: mx.array
    read: mx.array
    places: mx.array
    sight: Orders
    turns: Turns
    sealed: tuple[SealedPages, ...]


class PoolsAttention:
    """One step over an arena with sealed pages; the twin of :class:`omni_mlx.step.StepAttention`.

    Attributes:
        mass: ``float32[n]`` a layer group, where the plan asks for it; else empty.
    """

    def __init__(
        self, plan: StepPlan, mirror: TableMirror, arena: Arena, sealer: Sealer, text: TextConfig
    ) -> None:
        self._arena, self._sealer, self._text = arena, sealer, text
        self._rotary = StepRotary(plan.positions, text)
        live = mirror.preview(plan)
        # What dead cells get is 0, and goes to a place behind the last.
        self._mass = [mx.zeros(group.cells.size + 1) for group in live] if plan.mass else []
        self._groups = [
            self._group(plan, cells, group, mirror.modality)
            for cells, group in zip(plan.cells, live, strict=True)
        ]

    @property
    def mass(self) -> list[mx.array]:
        """See above."""
        return [group[:-1] for group in self._mass]

    def __call__(
        self, group: int, layer: int, queries: mx.array, keys: mx.array, values: mx.array
    ) -> mx.array:
        """Store keys and values of a group's layer, then attend; see ``backbone.Attend``."""
        of, arena = self._groups[group], self._arena
        arena.write(layer, of.write, rotate(keys, *self._rotary.tables()), values)
        stored = tuple(part.astype(mx.float32) for part in arena.read(layer, of.read))
        streams, q_heads, count, _ = queries.shape
        most = max(stored[0].shape[2], _PAGES * PAGE)
        block = max(1, SCORES // (streams * q_heads * most))
        parts = []
        for start in range(0, count, block):
            some = slice(start, min(start + block, count))
            parts.append(self._attend(queries[:, :, some], some, group, layer, stored))
            if block < count:
                mx.eval(parts[-1], self._mass)
        return mx.concatenate(parts, axis=2)

    def pending(self) -> list[mx.array]:
        """What has to be evaluated beside the arena."""
        return self._mass

    def temporary(self, group: int, streams: int, tokens: int) -> int:
        """Bytes of gathered cells and scores that a layer of a group needs while it runs, roughly.

        Of sealed pages, those that are decoded at a time.
        """
        of, text = self._groups[group], self._text
        sealed = min(_PAGES, sum(some.pages.size for some in of.sealed)) * PAGE
        cells = of.read.shape[1] + sealed
        scores = streams * text.q_heads * tokens * cells
        gathered = 2 * 4 * streams * text.kv_heads * cells * text.head_dim
        return gathered + 3 * 4 * min(scores, SCORES)

    def _attend(
        self,
        queries: mx.array,
        block: slice,
        group: int,
        layer: int,
        stored: tuple[mx.array, ...],
    ) -> mx.array:
        """Of a block of queries ``[streams, q_heads, T, head_dim]``, not rotated."""
        of, number = self._groups[group], group * self._arena.layout.layers_per_group + layer
        streams, _, count, head_dim = queries.shape
        turned = of.turns.slice(block.start, block.stop)(queries.astype(mx.float32))
        rows = turned.reshape(turned.shape[0], streams, self._text.kv_heads, -1, head_dim)
        rows = rows * head_dim**-0.5
        seen = of.sight.cells <= of.sight.queries[block]
        plain = self._plain(of, rows, seen, stored)
        sums: dict[int, _Sum] = {}
        for part in self._parts(of, plain, rows, layer, number):
            known = sums.setdefault(part.rotation, _Sum())
            known.add(part.scores, part.values())
            if len(of.sealed) > 1:
                # What was decoded goes before the next pages are.
                mx.eval(known.peak, known.total, known.mixed)
        whole = _Sum()
        for rotation, found in sums.items():
            mixed = found.mixed
            if rotation != _PLAIN:
                mixed = self._sealer.undone(mixed, number, rotation)
            whole.join(found.peak, found.total, mixed)
        # What sees nothing weighs nothing, and is 0 by any finite numbers.
        total = mx.where(whole.total == 0, 1.0, whole.total)
        if self._mass:
            peak = _grounded(whole.peak)
            for part in self._parts(of, plain, rows, layer, number):
                shares = (mx.exp(part.scores - peak) / total).sum(axis=(0, 1, 2))
                self._mass[group] = self._mass[group].at[part.places].add(shares)
                if len(of.sealed) > 1:
                    mx.eval(self._mass[group])
        found_rows = (whole.mixed / total).reshape(streams, -1, count, head_dim)
        return found_rows.astype(queries.dtype)

    def _plain(
        self, of: _Group, rows: mx.array, seen: mx.array, stored: tuple[mx.array, ...]
    ) -> _Part:
        keys, values = stored
        columns = keys.swapaxes(2, 3)
        found = [rows[table] @ columns[..., start:stop] for start, stop, table in of.turns.runs]
        scores = mx.concatenate(found, axis=-1) + of.sight.bias
        apart = mx.unflatten(scores, 2, (-1, seen.shape[0]))
        scores = mx.where(seen, apart, -mx.inf).reshape(scores.shape)
        return _Part(_PLAIN, scores, lambda: values, of.places)

    def _parts(
        self, of: _Group, plain: _Part, rows: mx.array, layer: int, number: int
    ) -> Iterator[_Part]:
        """Scores of each part, one after another."""
        yield plain
        coded = rows @ self._sealer.turn
        for some in of.sealed:
            stored = self._arena.read_sealed(layer, some.pages)
            keys = self._sealer.keys(stored, number)
            scores = coded[some.table] @ keys.swapaxes(2, 3) + some.bias
            scores = mx.where(some.live, scores, -mx.inf)

            def values(stored: mx.array = stored, some: SealedPages = some) -> mx.array:
                return self._sealer.values(stored, some.live)

            yield _Part(some.modality, scores, values, some.places)

    def _group(self, plan: StepPlan, cells: Int32, live: LiveCells, modality: Int8) -> _Group:
        first = self._arena.layout.pages
        plain = live.cells < first * PAGE
        own = LiveCells(live.cells[plain], live.order[plain], live.bias[plain], live.shift[plain])
        sealed = list(read_together(live, np.flatnonzero(~plain), modality, _PAGES))
        runs = own.runs()
        # Tables are numbered over both pools.
        turns = self._rotary.turns([*runs, *((0, 0, shift) for *_, shift, _ in sealed)])
        tables = [table for _, _, table in turns.runs[len(runs) :]]
        return _Group(
            self._arena.rows(cells),
            self._arena.rows(own.cells),
            mx.array(np.flatnonzero(plain).astype(np.int32)),
            Orders.of(own, plan.order),
            Turns(turns.cos, turns.sin, turns.runs[: len(runs)]),
            tuple(
                SealedPages(
                    mx.array((pages - first).astype(np.int32)),
                    mx.array(places.reshape(-1) >= 0),
                    mx.array(np.where(places < 0, np.float32(0), live.bias[places]).reshape(-1)),
                    mx.array(
                        np.where(places < 0, live.cells.size, places).reshape(-1).astype(np.int32)
                    ),
                    table,
                    kind,
                )
                for (pages, places, _, kind), table in zip(sealed, tables, strict=True)
            ),
        )


@dataclass(frozen=True)
class _Part:
    """Cells that are attended at once.

    Attributes:
        rotation: the modality whose rotation values are in, or :data:`_PLAIN`.
        scores: ``float32[streams, kv_heads, rows, n]``, -inf where a cell is not seen.
        values: gives ``float32[streams, kv_heads, n, head_dim]``.
        places: ``int32[n]``, of the cells among all of the group.
    """

    rotation: int
    scores: mx.array
    values: Callable[[], mx.array]
    places: mx.array


class _Sum:
    """A softmax over parts that come one by one.

    Attributes:
        peak, total: ``[streams, kv_heads, rows, 1]``: the highest score, and the sum of weights.
        mixed: ``[streams, kv_heads, rows, head_dim]``, values by their weights.
    """

    peak: mx.array
    total: mx.array
    mixed: mx.array

    def __init__(self) -> None:
        self._empty = True

    def add(self, scores: mx.array, values: mx.array) -> None:
        """Take in cells, some of which each row sees or none."""
        peak = scores.max(axis=-1, keepdims=True)
        weights = mx.exp(scores - _grounded(peak))
        self.join(peak, weights.sum(axis=-1, keepdims=True), weights @ values)

    def join(self, peak: mx.array, total: mx.array, mixed: mx.array) -> None:
        """Take in what was found elsewhere."""
        if self._empty:
            self.peak, self.total, self.mixed, self._empty = peak, total, mixed, False
            return
        higher = mx.maximum(self.peak, peak)
        kept, taken = (mx.exp(each - _grounded(higher)) for each in (self.peak, peak))
        self.total = self.total * kept + total * taken
        self.mixed = self.mixed * kept + mixed * taken
        self.peak = higher


def _grounded(peak: mx.array) -> mx.array:
    """Any finite number where nothing is seen: weights are exp(-inf) = 0 above it."""
    return mx.where(mx.isneginf(peak), 0.0, peak)
