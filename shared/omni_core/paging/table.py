"""Page tables over one pool: cells are handed out by page class, freed pages return to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from omni_core.backend import FREE, PAGE, SUBBLOCK, ArenaLayout, MovePlan, Seals, TableDelta
from omni_core.paging.layout import Bool, ClassPages, Flat, Layout, nothing
from omni_core.paging.mirror import pack_occupancy
from omni_core.paging.page import PageLayout
from omni_core.paging.sealing import KINDS, Ripeness, batches, free_subblocks
from omni_core.state import expect, listed, whole
from omni_core.units import Int8, Int32, Int64, Modality, Tier

_PAGE_COLUMNS: dict[str, type[np.signedinteger]] = {
    "group": np.int32,
    "kind": np.int32,
    "frame": np.int32,
    "opened": np.int64,
}


class NoFreePage(Exception):
    """The pool has no page left for a class that needs one."""


class PageClass(NamedTuple):
    """What the tokens of a page have in common: layer group, the layout's class, position frame."""

    group: int
    kind: int
    frame: int


@dataclass(frozen=True)
class Placement:
    """Cells for new tokens, not yet taken.

    Attributes:
        cells: ``int32[groups, T]``.
        opened: pages taken from the pool, and the class of each.
        delta: what the backend must be told, earlier changes included.
    """

    cells: Int32
    opened: dict[int, PageClass]
    delta: TableDelta


@dataclass(frozen=True)
class Usage:
    """How much is in use: live cells, pages, and pages from the first to the last used of a pool.

    ``cells`` is the mean over layer groups, which is the mean over layers; pages and span are sums,
    over both pools. ``sealed_cells`` and ``sealed_pages`` of them are sealed.
    """

    cells: int
    pages: int
    span: int
    sealed_cells: int = 0
    sealed_pages: int = 0


@dataclass(frozen=True)
class PageMap:
    """A layer group's pages: ids, the layout's classes, frames, and live cells of each subblock.

    ``pages, kinds, frames`` are ``[n]``, ``fill`` is ``[n, 2]``, 0 to ``SUBBLOCK``. Pages from id
    ``first_sealed`` on are sealed; without any, it is None.
    """

    pages: Int64
    kinds: Int32
    frames: Int32
    fill: Int64
    first_sealed: int | None = None

    @property
    def sealed(self) -> Bool:
        """Which pages are sealed, ``bool[n]``."""
        if self.first_sealed is None:
            return np.zeros(self.pages.size, np.bool_)
        return self.pages >= self.first_sealed


class PageTables:
    """The page tables of all layer groups: a function of what is stored, not of how it came.

    A page holds tokens of one class, which a layout defines, and of one position frame. Where the
    next token of a class goes depends on the live cells alone, so a rolled-back step leaves nothing
    behind. A sealed page holds tokens of one tier, modality and frame, and its subblocks never
    move: a layout places and moves 16-bit cells alone.
    """

    def __init__(self, arena: ArenaLayout, layout: Layout | None = None) -> None:
        self.arena = arena
        self.layout: Layout = layout or PageLayout()
        self.moved_cells = 0
        """Cells copied so far, over all layer groups."""
        self._group = np.full(arena.all_pages, FREE, np.int32)
        self._kind = np.zeros(arena.all_pages, np.int32)
        self._frame = np.zeros(arena.all_pages, np.int32)
        self._opened = np.zeros(arena.all_pages, np.int64)
        self._live = np.zeros((arena.all_pages, PAGE), np.bool_)
        self._dirty: set[int] = set()

    def free_pages(self) -> int:
        """Pages of 16 bits that no table lists."""
        return int((self._group[: self.arena.pages] == FREE).sum())

    def usage(self) -> Usage:
        """Live cells, pages and span now."""
        span, first = 0, self.arena.pages
        for group in range(self.arena.groups):
            for pool in (self._group[:first], self._group[first:]):
                pages = np.flatnonzero(pool == group)
                span += int(pages[-1] - pages[0]) + 1 if pages.size else 0
        return Usage(
            int(np.count_nonzero(self._live)) // self.arena.groups,
            int((self._group != FREE).sum()),
            span,
            int(np.count_nonzero(self._live[first:])) // self.arena.groups,
            int((self._group[first:] != FREE).sum()),
        )

    def frames(self) -> Int32:
        """Position frames that have live cells, ascending."""
        return np.unique(self._frame[self._group != FREE])

    def room(self, tier: Tier, frame: int) -> int:
        """Tokens of a tier that a layer group's open pages of a frame still take."""
        kind = self.layout.kinds(np.asarray([tier], np.int8), np.zeros(1, np.int8))
        return int(self.layout.room(self._class_pages(PageClass(0, int(kind[0]), frame))).size)

    def place(self, tiers: Int8, modality: Int8, frame: int = 0) -> Placement:
        """Cells for ``T`` new tokens in every layer group, without taking them.

        Raises:
            NoFreePage: the pool is too small.
        """
        free = iter(np.flatnonzero(self._group[: self.arena.pages] == FREE))
        cells = np.zeros((self.arena.groups, tiers.size), np.int32)
        opened: dict[int, PageClass] = {}
        kinds = self.layout.kinds(tiers, modality)
        for group in range(self.arena.groups):
            for kind in np.flatnonzero(np.bincount(kinds)).tolist():
                rows = np.flatnonzero(kinds == kind)
                room = self.layout.room(self._class_pages(PageClass(group, kind, frame)))
                if rows.size > room.size:
                    count = -(-(rows.size - room.size) // PAGE)
                    pages = np.fromiter(islice(free, count), np.int64)
                    opened |= dict.fromkeys(pages.tolist(), PageClass(group, kind, frame))
                    fresh = pages[:, None] * PAGE + np.arange(PAGE)
                    room = np.concatenate([room, fresh.reshape(-1)])
                if rows.size > room.size:
                    raise NoFreePage
                cells[group, rows] = room[: rows.size]
        return Placement(cells, opened, self._delta(cells, opened))

    def expect(self, cells: Int32) -> None:
        """Have the pages of these cells told to the backend again, should the plan come to nothing.

        Called before a backend runs a plan: one that is interrupted after it took the plan over
        would otherwise know pages that the tables do not.
        """
        self._dirty.update(self._pages(cells).tolist())

    def take(self, placement: Placement) -> None:
        """Take a placement's cells, once the backend has carried out its delta."""
        used = self._group != FREE
        last = int(self._opened[used].max(initial=0))
        for number, (page, kind) in enumerate(placement.opened.items(), 1):
            self._group[page], self._kind[page], self._frame[page] = kind
            self._opened[page] = last + number
        self._live.reshape(-1)[placement.cells.reshape(-1)] = True
        self._dirty.clear()

    def release(self, cells: Int32) -> None:
        """Free cells; a page without live cells returns to the pool."""
        flat = cells[cells >= 0].reshape(-1)
        self._live.reshape(-1)[flat] = False
        pages = self._pages(flat)
        self._dirty.update(pages.tolist())
        self._group[pages[~self._live[pages].any(axis=1)]] = FREE

    def relabel(self, tier: Tier, to: Tier) -> bool:
        """Give the pages of one tier another, without moving a cell; whether there are any."""
        found = False
        for old, new in _renamed(self.layout, tier, to):
            pages = (self._kind == old) & (self._group != FREE)
            self._kind[pages] = new
            found |= bool(pages.any())
        return found

    def join_frames(self, frames: list[int]) -> None:
        """Make several position frames one, the first, without moving a cell."""
        pages = np.flatnonzero(np.isin(self._frame, frames[1:]) & (self._group != FREE))
        self._frame[pages] = frames[0]
        self._dirty.update(pages.tolist())

    def plan_moves(self, urgent: bool = False) -> MovePlan | None:
        """The copies that the layout finds worth while, or every one that frees a page if urgent.

        Returns:
            The plan, or None where nothing is to be moved. Not yet taken: see :meth:`moved`.
        """
        moves = [nothing(), *(self.layout.moves(pages, urgent) for pages in self._classes())]
        source = np.concatenate([move[0] for move in moves])
        target = np.concatenate([move[1] for move in moves])
        if self.layout.trim:
            source, target = self._trimmed(source, target)
        if not source.size:
            return None
        live, group = self._live.copy(), self._group.copy()
        kind, frame = self._kind.copy(), self._frame.copy()
        live.reshape(-1)[source] = False
        live.reshape(-1)[target] = True
        old, new = self._relocated(source, target)
        for column in (group, kind, frame):
            column[new] = column[old]
        cells = np.concatenate([source, target])
        touched = self._pages(cells)
        group[touched[~live[touched].any(axis=1)]] = FREE
        delta = self._entries(self._changed(cells), group, live, kind, frame)
        return MovePlan(source.astype(np.int32), target.astype(np.int32), delta)

    def moved(self, plan: MovePlan) -> None:
        """Take a move over that the backend has carried out."""
        if len(plan.seals):
            self._sealed(plan)
        old, new = self._relocated(plan.source, plan.target)
        for column in (self._group, self._kind, self._frame, self._opened):
            column[new] = column[old]
        flat = self._live.reshape(-1)
        flat[plan.source] = False
        flat[plan.target] = True
        left = self._pages(plan.source)
        self._group[left[~self._live[left].any(axis=1)]] = FREE
        self._dirty.clear()
        self.moved_cells += int(plan.source.size)

    def plan_seals(self, ripeness: Ripeness) -> MovePlan | None:
        """The seals that are due and for which there is room, oldest tokens of a class first.

        Returns:
            The plan, or None where nothing is to be sealed. Not yet taken: see :meth:`moved`.
        """
        first = self.arena.pages
        group, kind, frame = self._group.copy(), self._kind.copy(), self._frame.copy()
        pages = group[first:], kind[first:], frame[first:]
        halves: Bool = np.any(self._live[first:].reshape(-1, 2, SUBBLOCK), axis=2)
        sources, targets = [], []
        for index, cells in enumerate(ripeness.cells):
            plain = np.flatnonzero((cells >= 0) & (cells < first * PAGE))
            held = cells[plain]
            kinds = self._kind[held // PAGE] // 8 * 8 + ripeness.modality[plain]
            frames = self._frame[held // PAGE]
            for batch in batches(held, kinds, frames, ripeness.ripe[plain], ripeness):
                free = free_subblocks(batch, index, pages, halves)[: len(batch.cells)]
                halves.reshape(-1)[free] = True
                for column, value in zip(pages, (index, batch.kind, batch.frame), strict=True):
                    column[free // 2] = value
                sources.append(batch.cells[: free.size])
                targets.append((first * 2 + free).astype(np.int32))
        if not sum(map(len, targets)):
            return None
        seals = Seals(np.concatenate(sources), np.concatenate(targets))
        live = self._live.copy()
        for there, cells in zip((False, True), seals.cells, strict=True):
            live.reshape(-1)[cells] = there
        cells = np.concatenate(seals.cells)
        touched = self._pages(cells)
        group[touched[~live[touched].any(axis=1)]] = FREE
        delta = self._entries(self._changed(cells), group, live, kind, frame)
        none = np.zeros(0, np.int32)
        return MovePlan(none, none, delta, seals)

    def page_map(self, group: int = 0) -> PageMap:
        """The pages of a layer group with their class and fill, for people."""
        pages = np.flatnonzero(self._group == group)
        fill = self._live[pages].reshape(-1, PAGE // SUBBLOCK, SUBBLOCK).sum(axis=2)
        first = self.arena.pages if self.arena.sealed_pages else None
        return PageMap(pages, self._kind[pages], self._frame[pages], fill, first)

    def state(self) -> dict[str, Any]:
        """The tables as JSON values, without the cells, which the ledger knows."""
        pages = {name: getattr(self, f"_{name}").tolist() for name in _PAGE_COLUMNS}
        return {"pages": pages, "untold": sorted(self._dirty), "moved_cells": self.moved_cells}

    def restore(self, state: Mapping[str, Any], cells: Sequence[Int32]) -> TableDelta:
        """Hold what :meth:`state` gave, with the live cells of each layer group.

        Returns:
            The pages that are listed, for a backend that knows of none.

        Raises:
            ValueError: no such tables fit this arena.
        """
        pages = self.arena.all_pages
        found = {
            name: listed(state["pages"][name], dtype, pages, least=FREE if name == "group" else 0)
            for name, dtype in _PAGE_COLUMNS.items()
        }
        untold = listed(state["untold"], np.int64, None)
        live = np.zeros_like(self._live)
        for group, held in enumerate(cells):
            expect(bool((held < pages * PAGE).all()), f"cells in an arena of {pages} pages")
            listing = found["group"][held // PAGE]
            expect(bool((listing == group).all()), "cells in pages of their layer group")
            live.reshape(-1)[held] = True
        used = found["group"] != FREE
        expect(bool((live.any(axis=1) == used).all()), "a live cell in each page that is listed")
        sealed = found["kind"][self.arena.pages :]
        expect(bool((sealed < KINDS).all()), f"kinds of sealed pages below {KINDS}")
        expect(bool(np.isin(sealed % 8, list(Modality)).all()), "a modality for each sealed page")
        expect(bool((untold < pages).all()), f"page numbers below {pages}")
        for name, values in found.items():
            getattr(self, f"_{name}")[:] = values
        self._live[:] = live
        self._dirty = set(untold.tolist())
        self.moved_cells = whole(state["moved_cells"])
        known = np.flatnonzero(used).astype(np.int32)
        return self._entries(known, self._group, self._live, self._kind, self._frame)

    def _classes(self) -> list[ClassPages]:
        """The 16-bit pages of all classes, by layer group, kind and frame."""
        used = np.flatnonzero(self._group[: self.arena.pages] != FREE)
        used = used[
            np.lexsort((self._opened[used], self._frame[used], self._kind[used], self._group[used]))
        ]
        kind, live = self._kind[used], self._live[used]
        fill = live.sum(axis=1)
        changes = np.zeros(used.size + 1, np.bool_)
        changes[[0, -1]] = True
        for column in (self._group[used], kind, self._frame[used]):
            changes[1:-1] |= column[1:] != column[:-1]
        edges = np.flatnonzero(changes).tolist()
        return [
            ClassPages(int(kind[start]) // 8, used[start:stop], live[start:stop], fill[start:stop])
            for start, stop in pairwise(edges)
        ]

    def _trimmed(self, source: Flat, target: Flat) -> tuple[Flat, Flat]:
        """These moves, and those of the last pages into the first free ones."""
        staying = self._staying(source)[: self.arena.pages]
        held: Bool = np.logical_or.reduce(staying, axis=1)
        used, free = np.flatnonzero(held)[::-1], np.flatnonzero(~held)
        count = min(used.size, free.size)
        before = free[:count] < used[:count]
        old, new = used[:count][before], free[:count][before]
        to = np.arange(self.arena.pages)
        to[old] = new
        row, slot = np.nonzero(staying[old])
        # A page's own cells come first: by them its new place is known, see _relocated.
        return (
            np.concatenate([old[row] * PAGE + slot, source]),
            np.concatenate([new[row] * PAGE + slot, to[target // PAGE] * PAGE + target % PAGE]),
        )

    def _relocated(self, source: Flat | Int32, target: Flat | Int32) -> tuple[Flat, Flat]:
        """Pages that move as a whole, and the free or emptied pages that they move to."""
        if not self.layout.trim:
            return nothing()
        held: Bool = np.logical_or.reduce(self._staying(source), axis=1)
        whole = np.flatnonzero(~held[target // PAGE])
        new, first = np.unique(target[whole].astype(np.int64) // PAGE, return_index=True)
        return source[whole[first]].astype(np.int64) // PAGE, new

    def _staying(self, source: Flat | Int32) -> Bool:
        """The live cells that do not move."""
        staying = self._live.copy()
        staying.reshape(-1)[source] = False
        return staying

    def _sealed(self, plan: MovePlan) -> None:
        """Take seals over."""
        old, new = plan.seals.source[:, 0] // PAGE, plan.seals.target // 2
        modality = plan.delta.modality[np.searchsorted(plan.delta.pages, new)]
        self._group[new], self._frame[new] = self._group[old], self._frame[old]
        self._kind[new] = self._kind[old] // 8 * 8 + modality
        source, target = plan.seals.cells
        self._live.reshape(-1)[target] = True
        self.release(source)

    def _changed(self, cells: Flat | Int32) -> Int32:
        """The pages of these cells and what else the backend has not heard of, ascending."""
        return np.asarray(sorted(self._dirty.union(self._pages(cells).tolist())), np.int32)

    def _pages(self, cells: Flat | Int32) -> Flat:
        """The pages of these cells, each once, ascending."""
        touched = np.zeros(self.arena.all_pages, np.bool_)
        touched[cells.reshape(-1) // PAGE] = True
        return np.flatnonzero(touched)

    def _class_pages(self, kind: PageClass) -> ClassPages:
        own = (self._group == kind.group) & (self._kind == kind.kind) & (self._frame == kind.frame)
        pages = np.flatnonzero(own[: self.arena.pages])
        pages = pages[np.argsort(self._opened[pages], kind="stable")]
        live = self._live[pages]
        return ClassPages(kind.kind // 8, pages, live, live.sum(axis=1))

    def _delta(self, cells: Int32, opened: dict[int, PageClass]) -> TableDelta:
        pages = self._changed(cells)
        group, kind, frame = self._group.copy(), self._kind.copy(), self._frame.copy()
        live = self._live.copy()
        for page, of in opened.items():
            group[page], kind[page], frame[page] = of
        live.reshape(-1)[cells.reshape(-1)] = True
        return self._entries(pages, group, live, kind, frame)

    @staticmethod
    def _entries(pages: Int32, group: Int32, live: Bool, kind: Int32, frame: Int32) -> TableDelta:
        return TableDelta(
            pages,
            group[pages],
            pack_occupancy(live[pages]),
            (kind[pages] % 8).astype(np.int8),
            frame[pages],
        )


@cache
def _renamed(layout: Layout, tier: Tier, to: Tier) -> list[tuple[int, int]]:
    """The classes of one tier that are others in another, and these."""
    senses = np.asarray(list(Modality), np.int8)
    old, new = (layout.kinds(np.full_like(senses, each), senses).tolist() for each in (tier, to))
    return [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
