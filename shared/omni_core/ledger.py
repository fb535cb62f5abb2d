"""The ledger: one row a live token, by order. Evicted tokens leave it: it is as bounded as they."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.state import expect, listed, whole
from omni_core.units import Int8, Int32, Int64, Modality, Role, TokenBlock

_COLUMNS: dict[str, type[np.signedinteger | np.floating]] = {
    "order": np.int64,
    "unit": np.int32,
    "turn": np.int32,
    "modality": np.int8,
    "sense": np.int8,
    "role": np.int8,
    "offset": np.int32,
    "mass": np.float64,
    "count": np.int32,
}

_LEAST = {"unit": -1, "count": 1}
"""The smallest number in a column, where that is not 0."""


@dataclass(frozen=True)
class LedgerView:
    """The live tokens, oldest first, as read-only columns of length ``n``.

    Attributes:
        order: ``int64[n]``, place in the stream, ascending, never reused.
        unit: ``int32[n]``, unit number; -1 for the prefix.
        turn: ``int32[n]``, run of units between one pair of brackets.
        modality, sense, role: ``int8[n]``, as in :class:`~omni_core.units.TokenBlock`.
        offset: ``int32[n]``, place in the span.
        mass: ``float64[n]``, attention that the token has got, where the policy asks for it.
        cells: ``int32[groups, n]``, the token's cell in each layer group, -1 where it was evicted.
        count: ``int32[n]``, raw tokens merged into it; its bias is the log of that.
    """

    order: Int64
    unit: Int32
    turn: Int32
    modality: Int8
    sense: Int8
    role: Int8
    offset: Int32
    mass: npt.NDArray[np.float64]
    cells: Int32
    count: Int32

    def __len__(self) -> int:
        return int(self.order.size)

    def among(self, some: npt.NDArray[np.bool_]) -> LedgerView:
        """The tokens ``bool[n]`` alone."""
        columns = {name: getattr(self, name)[some] for name in _COLUMNS}
        return LedgerView(**columns, cells=self.cells[:, some])


class Ledger:
    """What is in the cache, token by token, and the stream's next order."""

    def __init__(self, groups: int) -> None:
        self._size = 0
        self._columns = {name: np.zeros(1024, dtype) for name, dtype in _COLUMNS.items()}
        self._cells = np.zeros((groups, 1024), np.int32)
        self.next_order = 0

    def __len__(self) -> int:
        return self._size

    def view(self) -> LedgerView:
        """The live tokens. Valid until the next change."""
        columns = {name: column[: self._size] for name, column in self._columns.items()}
        return LedgerView(**columns, cells=self._cells[:, : self._size])

    def append(
        self,
        block: TokenBlock,
        unit: int,
        turn: Int32,
        cells: Int32,
        counts: Int32 | None = None,
    ) -> None:
        """Add new tokens at the end of the stream.

        Args:
            block: ``T`` tokens.
            unit: where they belong.
            turn: ``int32[T]``.
            cells: ``int32[groups, T]``.
            counts: ``int32[T]``, raw tokens merged into each; one each if left out.
        """
        count = len(block)
        self._reserve(self._size + count)
        rows = slice(self._size, self._size + count)
        values: dict[str, npt.ArrayLike] = {
            "order": np.arange(self.next_order, self.next_order + count),
            "unit": unit,
            "turn": turn,
            "modality": block.modality,
            "sense": block.sense,
            "role": block.role,
            "offset": block.offset,
            "mass": 0.0,
            "count": 1 if counts is None else counts,
        }
        for name, value in values.items():
            self._columns[name][rows] = value
        self._cells[:, rows] = cells
        self._size += count
        self.next_order += count

    def truncate(self, order: int) -> Int32:
        """Take back the tokens from ``order`` on; returns their cells ``int32[groups, n]``."""
        keep = int(np.searchsorted(self._columns["order"][: self._size], order))
        cells = self._cells[:, keep : self._size].copy()
        self._size = keep
        self.next_order = order
        return cells

    def alive(self) -> Int64:
        """Live cells of each layer group, ``int64[groups]``."""
        held: Int64 = np.count_nonzero(self._cells[:, : self._size] >= 0, axis=1)
        return held

    def drop(self, gone: npt.NDArray[np.bool_]) -> Int32:
        """Evict tokens ``bool[groups, n]``, each from its layer groups; returns their cells.

        A token that no layer group keeps leaves the ledger.
        """
        cells = self._cells[:, : self._size]
        lost = cells[gone & (cells >= 0)]
        np.putmask(cells, gone, -1)
        kept = np.flatnonzero((self._cells[:, : self._size] >= 0).any(axis=0))
        count = kept.size
        for column in self._columns.values():
            column[:count] = column.take(kept)
        self._cells[:, :count] = self._cells.take(kept, axis=1)
        self._size = count
        return lost

    def move(self, source: Int32, target: Int32) -> None:
        """Follow cells that were copied inside the arena."""
        if not source.size:
            return
        cells = self._cells[:, : self._size]
        # Where each cell's token is now; the last entry serves -1, a token without a cell.
        now = np.arange(max(int(cells.max(initial=0)), int(source.max())) + 2, dtype=np.int32)
        now[-1] = -1
        now[source] = target
        cells[:] = now.take(cells, mode="wrap")

    def add_mass(self, mass: tuple[npt.NDArray[np.float32], ...]) -> None:
        """Add a step's attention mass: a layer group's live tokens each, oldest first."""
        column = self._columns["mass"][: self._size]
        for cells, got in zip(self._cells[:, : self._size], mass, strict=True):
            column[cells >= 0] += got

    def masses(self) -> tuple[Int64, npt.NDArray[np.float64]]:
        """The order and the attention mass of the live tokens, as copies."""
        view = self.view()
        return view.order.copy(), view.mass.copy()

    def restore_masses(self, order: Int64, mass: npt.NDArray[np.float64]) -> None:
        """Put back what :meth:`masses` gave, for tokens that are still there."""
        view = self.view()
        at = np.searchsorted(order, view.order)
        known = at < order.size
        self._columns["mass"][: self._size][known] = mass[at[known]]

    def state(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        view = self.view()
        columns = {name: getattr(view, name).tolist() for name in _COLUMNS}
        return {"next_order": self.next_order, "columns": columns, "cells": view.cells.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hold what :meth:`state` gave, and nothing else.

        Raises:
            ValueError: it cannot be a ledger of so many layer groups.
        """
        given = state["columns"]
        size = len(given["order"])
        # Ledgers were saved before tokens were merged.
        given = {"count": [1] * size, **given}
        found = {
            name: listed(given[name], dtype, size, least=_LEAST.get(name, 0))
            for name, dtype in _COLUMNS.items()
        }
        cells = [listed(row, np.int32, size, least=-1) for row in state["cells"]]
        next_order = whole(state["next_order"])
        expect(len(cells) == len(self._cells), "a row of cells for each layer group")
        order, unit = found["order"], found["unit"]
        expect(bool((np.diff(order, append=next_order) > 0).all()), "orders that ascend")
        expect(bool((np.diff(unit) >= 0).all()), "units that ascend")
        for name, kind in (("modality", Modality), ("sense", Modality), ("role", Role)):
            expect(bool(np.isin(found[name], list(kind)).all()), f"a {name} that there is")
        held = np.stack(cells)
        expect(bool((held >= 0).any(axis=0).all()), "a cell for each token")
        taken = held[held >= 0]
        expect(np.unique(taken).size == taken.size, "a cell of its own for each token")
        self._reserve(size)
        for name, values in found.items():
            self._columns[name][:size] = values
        self._cells[:, :size] = held
        self._size, self.next_order = size, next_order

    def _reserve(self, size: int) -> None:
        room = self._cells.shape[1]
        if size <= room:
            return
        wider = max(size, 2 * room)
        for name, column in self._columns.items():
            self._columns[name] = np.resize(column, wider)
        grown = np.zeros((self._cells.shape[0], wider), np.int32)
        grown[:, :room] = self._cells
        self._cells = grown
