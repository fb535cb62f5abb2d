"""Page tables over one pool: cells are handed out by page class, freed pages return to it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from omni_core.backend import FREE, PAGE, ArenaLayout, MovePlan, TableDelta
from omni_core.paging.mirror import pack_occupancy
from omni_core.units import Int8, Int32


class NoFreePage(Exception):
    """The pool has no page left for a class that needs one."""


@dataclass(frozen=True)
class Placement:
    """Cells for new tokens, not yet taken.

    Attributes:
        cells: ``int32[groups, T]``.
        opened: pages taken from the pool, each with ``(group, tier, modality, frame)``.
        delta: what the backend must be told, earlier changes included.
    """

    cells: Int32
    opened: dict[int, tuple[int, int, int, int]]
    delta: TableDelta


@dataclass(frozen=True)
class Usage:
    """How much of the pool is in use: live cells, pages, and pages from the first to the last used.

    ``cells`` is the mean over layer groups, which is the mean over layers; pages and span are sums.
    """

    cells: int
    pages: int
    span: int


class PageTables:
    """The page tables of all layer groups: a function of what is stored, not of how it came.

    A page holds tokens of one class: retention tier, modality and position frame. Within its class
    a token takes the first free cell, so a rolled-back step leaves nothing behind.
    """

    def __init__(self, layout: ArenaLayout) -> None:
        self.layout = layout
        self._group = np.full(layout.pages, FREE, np.int32)
        self._tier = np.zeros(layout.pages, np.int8)
        self._modality = np.zeros(layout.pages, np.int8)
        self._frame = np.zeros(layout.pages, np.int32)
        self._live = np.zeros((layout.pages, PAGE), np.bool_)
        self._dirty: set[int] = set()

    def free_pages(self) -> int:
        """Pages that no table lists."""
        return int((self._group == FREE).sum())

    def usage(self) -> Usage:
        """Live cells, pages and span now."""
        span = 0
        for group in range(self.layout.groups):
            pages = np.flatnonzero(self._group == group)
            span += int(pages[-1] - pages[0]) + 1 if pages.size else 0
        pages_used = int((self._group != FREE).sum())
        return Usage(int(self._live.sum()) // self.layout.groups, pages_used, span)

    def place(self, tiers: Int8, modality: Int8, frame: int = 0) -> Placement:
        """Cells for ``T`` new tokens in every layer group, without taking them.

        Raises:
            NoFreePage: the pool is too small.
        """
        free = iter(np.flatnonzero(self._group == FREE))
        cells = np.zeros((self.layout.groups, tiers.size), np.int32)
        opened: dict[int, tuple[int, int, int, int]] = {}
        keys = tiers.astype(np.int32) * 8 + modality
        for group in range(self.layout.groups):
            for key in np.unique(keys):
                rows = np.flatnonzero(keys == key)
                kind = (group, int(key) // 8, int(key) % 8, frame)
                room = self._room(*kind)
                if rows.size > room.size:
                    pages = np.fromiter(islice(free, -(-(rows.size - room.size) // PAGE)), np.int64)
                    opened |= dict.fromkeys(pages.tolist(), kind)
                    fresh = pages[:, None] * PAGE + np.arange(PAGE)
                    room = np.concatenate([room, fresh.reshape(-1)])
                if rows.size > room.size:
                    raise NoFreePage
                cells[group, rows] = room[: rows.size]
        return Placement(cells, opened, self._delta(cells, opened))

    def take(self, placement: Placement) -> None:
        """Take a placement's cells, once the backend has carried out its delta."""
        for page, kind in placement.opened.items():
            self._group[page], self._tier[page], self._modality[page], self._frame[page] = kind
        self._live.reshape(-1)[placement.cells.reshape(-1)] = True
        self._dirty.clear()

    def release(self, cells: Int32) -> None:
        """Free cells; a page without live cells returns to the pool."""
        flat = cells[cells >= 0].reshape(-1)
        self._live.reshape(-1)[flat] = False
        pages = np.unique(flat // PAGE)
        self._dirty.update(pages.tolist())
        self._group[pages[~self._live[pages].any(axis=1)]] = FREE

    def relabel(self, tier: int, to: int) -> None:
        """Give the pages of one tier another, without moving a cell."""
        self._tier[(self._tier == tier) & (self._group != FREE)] = to

    def plan_moves(self, worth: int = PAGE // 2) -> MovePlan | None:
        """Empty pages into the holes of fuller ones of their class, where that frees a page.

        Args:
            worth: most cells to copy for one freed page.

        Returns:
            The plan, or None where nothing pays. Not yet taken: see :meth:`moved`.
        """
        source: list[int] = []
        target: list[int] = []
        live, emptied = self._live.copy(), []
        classes = np.stack([self._group, self._tier, self._modality, self._frame], axis=1)
        for kind in np.unique(classes[self._group != FREE], axis=0):
            pages = np.flatnonzero((classes == kind).all(axis=1))
            fill = live[pages].sum(axis=1)
            pages = pages[np.argsort(fill, kind="stable")]
            while pages.size > 1:
                page, rest = pages[0], pages[1:]
                leaving = np.flatnonzero(live[page])
                row, slot = np.nonzero(~live[rest[::-1]])
                if leaving.size > worth or leaving.size > row.size:
                    break
                to = rest[::-1][row[: leaving.size]] * PAGE + slot[: leaving.size]
                source += (page * PAGE + leaving).tolist()
                target += to.tolist()
                live[page] = False
                live.reshape(-1)[to] = True
                emptied.append(int(page))
                pages = rest
        if not source:
            return None
        # A page that one move fills, a later one may empty: follow each cell to where it ends.
        first, last = _collapse(source, target)
        touched = sorted(self._dirty | {cell // PAGE for cell in (*source, *target)})
        group = self._group.copy()
        group[emptied] = FREE
        delta = self._entries(np.asarray(touched, np.int32), group, live)
        return MovePlan(first, last, delta)

    def moved(self, plan: MovePlan) -> None:
        """Take a move over that the backend has carried out."""
        flat = self._live.reshape(-1)
        flat[plan.source] = False
        flat[plan.target] = True
        emptied = np.unique(plan.source // PAGE)
        self._group[emptied[~self._live[emptied].any(axis=1)]] = FREE
        self._dirty.clear()

    def _room(self, group: int, tier: int, modality: int, frame: int) -> npt.NDArray[np.int64]:
        pages = np.flatnonzero(
            (self._group == group)
            & (self._tier == tier)
            & (self._modality == modality)
            & (self._frame == frame)
        )
        row, slot = np.nonzero(~self._live[pages])
        cells: npt.NDArray[np.int64] = pages[row] * PAGE + slot
        return cells

    def _delta(self, cells: Int32, opened: dict[int, tuple[int, int, int, int]]) -> TableDelta:
        pages = np.asarray(
            sorted(self._dirty | set((cells.reshape(-1) // PAGE).tolist())), np.int32
        )
        group, modality, frame = self._group.copy(), self._modality.copy(), self._frame.copy()
        live = self._live.copy()
        for page, kind in opened.items():
            group[page], _, modality[page], frame[page] = kind
        live.reshape(-1)[cells.reshape(-1)] = True
        return self._entries(pages, group, live, modality, frame)

    def _entries(
        self,
        pages: Int32,
        group: Int32,
        live: npt.NDArray[np.bool_],
        modality: Int8 | None = None,
        frame: Int32 | None = None,
    ) -> TableDelta:
        return TableDelta(
            pages,
            group[pages],
            pack_occupancy(live[pages]),
            (self._modality if modality is None else modality)[pages],
            (self._frame if frame is None else frame)[pages],
        )


def _collapse(source: list[int], target: list[int]) -> tuple[Int32, Int32]:
    origin: dict[int, int] = {}
    for start, stop in zip(source, target, strict=True):
        origin[stop] = origin.pop(start, start)
    stops = sorted(origin)
    return np.asarray([origin[s] for s in stops], np.int32), np.asarray(stops, np.int32)
