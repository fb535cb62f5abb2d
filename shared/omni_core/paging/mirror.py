"""What a backend knows of the page tables: built from plans alone, the same in both twins."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from omni_core.backend import (
    FREE,
    PAGE,
    ArenaLayout,
    MovePlan,
    RestorePlan,
    StepPlan,
    TableDelta,
)
from omni_core.errors import PlanError
from omni_core.plan_checks import check_seals
from omni_core.units import Int8, Int32, Int64

_NO_PAGES = np.zeros(0, np.int8)


@dataclass(frozen=True)
class LiveCells:
    """The live cells of one layer group, oldest token first.

    Attributes:
        cells: ``int32[n]``, ``page * PAGE + slot``.
        order: ``int64[n]``, ascending.
        bias: ``float32[n]``, added to the cell's score: the log of its merged count.
        shift: ``int32[n]``, added to a query's position to read the cell's key; never rises.
    """

    cells: Int32
    order: Int64
    bias: npt.NDArray[np.float32]
    shift: Int32

    def runs(self) -> list[tuple[int, int, int]]:
        """Stretches ``(start, stop, shift)`` of cells that one rotation of the queries reads."""
        edges = np.flatnonzero(np.diff(self.shift)) + 1
        starts = [0, *edges.tolist()]
        stops = [*edges.tolist(), self.cells.size]
        return [
            (start, stop, int(self.shift[start]))
            for start, stop in zip(starts, stops, strict=True)
            if stop > start
        ]


@dataclass(frozen=True)
class ListedPages:
    """The pages of a layer group that have live cells.

    Attributes:
        pages: ``int32[n]``, ascending: sealed ones come last.
        occupancy: ``uint32[n, 2]``.
        shift: ``int32[n]``, added to a query's position to read the page's keys.
        checked: ``bool[n]``, whether some live cell is newer than some query.
        order: ``int64[c, PAGE]``, of the ``c`` checked pages.
        since: an order up to which every query sees all; at best the first query's own.
        sealed: ``int8[s]``, the modality of the last ``s`` pages, which are the sealed ones. All
            queries see their cells, for nothing is sealed before its step has run.
    """

    pages: Int32
    occupancy: npt.NDArray[np.uint32]
    shift: Int32
    checked: npt.NDArray[np.bool_]
    order: Int64
    since: int = -1
    sealed: Int8 = field(default_factory=lambda: _NO_PAGES)


class TableMirror:
    """Page tables as a backend sees them. Host arrays over the whole pool, changed by plans only.

    A step is looked at with :meth:`preview` while it runs and taken over with :meth:`commit` once
    it has succeeded, so a step that raises leaves the tables as they were.
    """

    def __init__(self, layout: ArenaLayout) -> None:
        self.layout = layout
        pages = layout.all_pages
        self.group = np.full(pages, FREE, np.int32)
        self.occupancy = np.zeros((pages, 2), np.uint32)
        self.order = np.full((pages, PAGE), -1, np.int64)
        self.counts = np.ones((pages, PAGE), np.int32)
        self.merged = False
        """Whether some token so far stood for more than one."""
        self.frame = np.zeros(pages, np.int32)
        self.modality = np.zeros(pages, np.int8)

    def preview(self, plan: StepPlan) -> list[LiveCells]:
        """The live cells of every layer group as this step sees them, its own tokens included."""
        group, occupancy, shift = self._ahead(plan)
        return [self._live(g, group, occupancy, shift) for g in range(self.layout.groups)]

    def preview_pages(self, plan: StepPlan) -> list[ListedPages]:
        """The pages of every layer group as this step sees them, its own tokens included."""
        group, occupancy, shift = self._ahead(plan)
        listed = []
        for index, cells in enumerate(plan.cells):
            pages = np.flatnonzero(group == index).astype(np.int32)
            # New tokens are newer than all others: what else lies in their pages is looked at too.
            checked = np.zeros(self.layout.all_pages, np.bool_)
            checked[cells // PAGE] = plan.rows.size > 1
            checked = checked[pages]
            order = self.order[pages[checked]]
            since, sealed = int(plan.order[0]), self.modality[pages[pages >= self.layout.pages]]
            listed.append(
                ListedPages(pages, occupancy[pages], shift[pages], checked, order, since, sealed)
            )
        return listed

    def commit(self, plan: StepPlan | MovePlan | RestorePlan) -> None:
        """Take a plan over that the backend has carried out."""
        if isinstance(plan, StepPlan):
            self._write(plan)
        elif isinstance(plan, RestorePlan):
            for cells, order, counts in zip(plan.cells, plan.order, plan.counts, strict=True):
                self.order.reshape(-1)[cells] = order
                self.counts.reshape(-1)[cells] = counts
                self.merged = self.merged or bool((counts > 1).any())
        else:
            order, counts = self.order.reshape(-1), self.counts.reshape(-1)
            for source, target in (plan.seals.cells, (plan.source, plan.target)):
                order[target] = order[source]
                counts[target] = counts[source]
        _apply(plan.delta, self.group, self.occupancy, self.frame)
        self.modality[plan.delta.pages] = plan.delta.modality

    def check(self, plan: StepPlan | MovePlan | RestorePlan) -> None:
        """Refuse a plan that names pages outside the arena or has the wrong number of layer groups.

        Nor may what it seals contradict itself or the tables.

        Raises:
            PlanError: naming the field.
        """
        pages = self.layout.all_pages
        if (
            plan.delta.pages.size
            and not 0 <= plan.delta.pages.min() <= plan.delta.pages.max() < pages
        ):
            raise PlanError(
                f"delta.pages outside the arena of {pages} pages; was it made for another?"
            )
        named = [plan.source, plan.target] if isinstance(plan, MovePlan) else [*plan.cells]
        if isinstance(plan, StepPlan):
            # New tokens are written in 16 bits.
            pages = self.layout.pages
        for cells in named:
            if cells.size and not 0 <= cells.min() <= cells.max() < pages * PAGE:
                raise PlanError(
                    f"cells outside the arena of {pages} pages; was it made for another?"
                )
        if not isinstance(plan, MovePlan) and len(plan.cells) != self.layout.groups:
            raise PlanError(
                f"the plan has {len(plan.cells)} layer groups, the arena {self.layout.groups}"
            )
        if isinstance(plan, MovePlan):
            check_seals(plan, self.layout)
            self._check_groups(plan)

    def sealed_modality(self, plan: MovePlan) -> Int8:
        """The modality of each subblock that a plan seals, ``int8[n]``: that of its page."""
        at = np.searchsorted(plan.delta.pages, plan.seals.target // 2)
        found: Int8 = plan.delta.modality[at]
        return found

    def _check_groups(self, plan: MovePlan) -> None:
        row, slot = np.nonzero(plan.seals.source >= 0)
        own = self.group[plan.seals.source[row, slot] // PAGE]
        told = np.searchsorted(plan.delta.pages, plan.seals.target // 2)
        if (own != plan.delta.group[told][row]).any():
            raise PlanError(
                "cells are to be sealed in a page of another layer group than their own"
            )

    def _ahead(self, plan: StepPlan) -> tuple[Int32, npt.NDArray[np.uint32], Int32]:
        """Group, occupancy and shift of each page, as this step sees them."""
        self._write(plan)
        group, occupancy, frame = self.group.copy(), self.occupancy.copy(), self.frame.copy()
        _apply(plan.delta, group, occupancy, frame)
        shifts = np.zeros(int(max(frame.max(), plan.shifts[:, 0].max(initial=0))) + 1, np.int32)
        shifts[plan.shifts[:, 0]] = plan.shifts[:, 1]
        return group, occupancy, shifts[frame]

    def _write(self, plan: StepPlan) -> None:
        # The cells are dead until the plan is committed, so a step that raises has changed nothing.
        for cells in plan.cells:
            self.order.reshape(-1)[cells] = plan.order
            self.counts.reshape(-1)[cells] = plan.counts
        self.merged = self.merged or bool((plan.counts > 1).any())

    def _live(
        self,
        index: int,
        group: Int32,
        occupancy: npt.NDArray[np.uint32],
        shift: Int32,
    ) -> LiveCells:
        pages = np.flatnonzero(group == index)
        bits = unpack_occupancy(occupancy[pages])
        row, slot = np.nonzero(bits)
        cells = (pages[row] * PAGE + slot).astype(np.int32)
        ranks = self.order.reshape(-1)[cells]
        ranking = np.argsort(ranks, kind="stable")
        cells = cells[ranking]
        bias = np.log(self.counts.reshape(-1)[cells]).astype(np.float32)
        return LiveCells(cells, ranks[ranking], bias, shift[cells // PAGE])


def _apply(
    delta: TableDelta, group: Int32, occupancy: npt.NDArray[np.uint32], frame: Int32
) -> None:
    group[delta.pages] = delta.group
    frame[delta.pages] = delta.frame
    occupancy[delta.pages] = delta.occupancy


def unpack_occupancy(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Occupancy words ``uint32[n, 2]`` as ``bool[n, PAGE]``."""
    shifts = np.arange(32, dtype=np.uint32)
    return ((words[:, :, None] >> shifts) & np.uint32(1)).astype(np.bool_).reshape(-1, PAGE)


def pack_occupancy(bits: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """``bool[n, PAGE]`` as occupancy words ``uint32[n, 2]``."""
    shifts = np.arange(32, dtype=np.uint32)
    halves = bits.reshape(-1, 2, 32).astype(np.uint32) << shifts
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(halves, axis=2).astype(np.uint32)
    return words
