"""What a backend knows of the page tables: built from plans alone, the same in both twins."""

from __future__ import annotations

from dataclasses import dataclass

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
from omni_core.units import Int32, Int64


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
        pages: ``int32[n]``.
        occupancy: ``uint32[n, 2]``.
        shift: ``int32[n]``, added to a query's position to read the page's keys.
        checked: ``bool[n]``, whether some live cell is newer than some query.
        order: ``int64[c, PAGE]``, of the ``c`` checked pages.
        since: an order up to which every query sees all; at best the first query's own.
    """

    pages: Int32
    occupancy: npt.NDArray[np.uint32]
    shift: Int32
    checked: npt.NDArray[np.bool_]
    order: Int64
    since: int = -1


class TableMirror:
    """Page tables as a backend sees them. Host arrays over the whole pool, changed by plans only.

    A step is looked at with :meth:`preview` while it runs and taken over with :meth:`commit` once
    it has succeeded, so a step that raises leaves the tables as they were.
    """

    def __init__(self, layout: ArenaLayout) -> None:
        self.layout = layout
        self.group = np.full(layout.pages, FREE, np.int32)
        self.occupancy = np.zeros((layout.pages, 2), np.uint32)
        self.order = np.full((layout.pages, PAGE), -1, np.int64)
        self.counts = np.ones((layout.pages, PAGE), np.int32)
        self.merged = False
        """Whether some token so far stood for more than one."""
        self.frame = np.zeros(layout.pages, np.int32)

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
            checked = np.zeros(self.layout.pages, np.bool_)
            checked[cells // PAGE] = plan.rows.size > 1
            checked = checked[pages]
            order = self.order[pages[checked]]
            since = int(plan.order[0])
            listed.append(ListedPages(pages, occupancy[pages], shift[pages], checked, order, since))
        return listed

    def commit(self, plan: StepPlan | MovePlan | RestorePlan) -> None:
        """Take a plan over that the backend has carried out."""
        if isinstance(plan, StepPlan):
            self._write(plan)
        elif isinstance(plan, RestorePlan):
            for cells, order in zip(plan.cells, plan.order, strict=True):
                self.order.reshape(-1)[cells] = order
        else:
            order, counts = self.order.reshape(-1), self.counts.reshape(-1)
            order[plan.target] = order[plan.source]
            counts[plan.target] = counts[plan.source]
        _apply(plan.delta, self.group, self.occupancy, self.frame)

    def check(self, plan: StepPlan | MovePlan | RestorePlan) -> None:
        """Refuse a plan that names pages outside the arena or has the wrong number of layer groups.

        Raises:
            PlanError: naming the field.
        """
        pages = self.layout.pages
        if (
            plan.delta.pages.size
            and not 0 <= plan.delta.pages.min() <= plan.delta.pages.max() < pages
        ):
            raise PlanError(
                f"delta.pages outside the arena of {pages} pages; was it made for another?"
            )
        named = [plan.source, plan.target] if isinstance(plan, MovePlan) else [*plan.cells]
        for cells in named:
            if cells.size and not 0 <= cells.min() <= cells.max() < pages * PAGE:
                raise PlanError(
                    f"cells outside the arena of {pages} pages; was it made for another?"
                )
        if not isinstance(plan, MovePlan) and len(plan.cells) != self.layout.groups:
            raise PlanError(
                f"the plan has {len(plan.cells)} layer groups, the arena {self.layout.groups}"
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
