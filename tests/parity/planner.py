"""Plans for tests without a session: cells in a chosen arrangement, eviction by clearing bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from omni_core.backend import FREE, PAGE, ArenaLayout, MovePlan, StepPlan, TableDelta
from omni_core.paging.mirror import pack_occupancy
from tests.parity.tiny import Shape


class Planner:
    """Hands out cells and remembers which tokens every token could see. A page has one frame.

    ``placement`` is the order in which free cells are used: ``sequential``, ``reversed`` or
    ``scattered`` over the whole arena. Groups own the pages ``group``, ``group + groups``, …
    """

    def __init__(self, pages: int, groups: int = 1, placement: str = "sequential") -> None:
        self.pages, self.groups = pages, groups
        self.order = 0
        self.where: list[dict[int, int]] = [{} for _ in range(groups)]
        self.seen: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(groups)]
        self.free = [self._cells(group, placement) for group in range(groups)]
        self.dirty: set[int] = set()
        self.frame = np.zeros(pages, np.int32)

    def layout(self, shape: Shape, streams: int = 1) -> ArenaLayout:
        depth = shape.layers // self.groups
        return ArenaLayout(self.pages, self.groups, depth, shape.kv_heads, shape.head_dim, streams)

    def step(
        self,
        tokens: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        logits: Iterable[int] | None = None,
        counts: npt.NDArray[np.int32] | None = None,
        frame: int = 0,
        shifts: Mapping[int, int] | None = None,
        mass: bool = False,
    ) -> StepPlan:
        """The next tokens ``[streams, T]``, with the logits of all unless told otherwise.

        ``shifts`` are those of other frames than ``frame``, the tokens' own.
        """
        count = tokens.shape[1]
        order = np.arange(self.order, self.order + count)
        self.order += count
        cells = np.empty((self.groups, count), np.int32)
        for group in range(self.groups):
            for column, rank in enumerate(order):
                cell = self._draw(group, frame)
                self.where[group][int(rank)] = cells[group, column] = cell
                self.dirty.add(cell // PAGE)
            alive = np.array(sorted(self.where[group]))
            self.seen[group] += [alive[alive <= rank] for rank in order]
        wanted = range(count) if logits is None else logits
        return StepPlan(
            tokens,
            rows,
            positions,
            order,
            np.ones(count, np.int32) if counts is None else counts,
            cells,
            np.array(sorted({**(shifts or {}), frame: 0}.items()), np.int32),
            np.array(list(wanted), np.int32),
            mass,
            self._delta(),
        )

    def evict(self, orders: Iterable[int], group: int | None = None) -> None:
        """Tokens that die; told with the next plan. Their cells are the next to be used again."""
        for index in range(self.groups) if group is None else [group]:
            for rank in orders:
                cell = self.where[index].pop(int(rank))
                self.free[index].insert(0, cell)
                self.dirty.add(cell // PAGE)

    def move(self, cells: dict[int, int], group: int = 0) -> MovePlan:
        """Move tokens, by order, to other cells of their group; they may trade places."""
        source = np.array([self.where[group][rank] for rank in cells], np.int32)
        target = np.array(list(cells.values()), np.int32)
        for old, new in zip(source // PAGE, target // PAGE, strict=True):
            assert self.frame[old] == self._frame(int(new), self.frame[old])
            self.frame[new] = self.frame[old]
        self.where[group].update(cells)
        self.dirty |= {int(cell) // PAGE for cell in [*source, *target]}
        used = set(self.where[group].values())
        released = [int(cell) for cell in source if int(cell) not in used]
        self.free[group] = [cell for cell in self.free[group] if cell not in used] + released
        return MovePlan(source, target, self._delta())

    def masks(self, group: int = 0) -> npt.NDArray[np.bool_]:
        """``bool[N, N]``: which tokens every token could see when it came."""
        mask = np.zeros((self.order, self.order), np.bool_)
        for rank, seen in enumerate(self.seen[group]):
            mask[rank, seen] = True
        return mask

    def _draw(self, group: int, frame: int) -> int:
        for place, cell in enumerate(self.free[group]):
            if self._frame(cell // PAGE, frame) == frame:
                self.frame[cell // PAGE] = frame
                return self.free[group].pop(place)
        raise AssertionError(f"no free cell for frame {frame}")

    def _frame(self, page: int, empty: int) -> int:
        """The frame of a page with live cells; ``empty`` for one without."""
        used = any(cell // PAGE == page for where in self.where for cell in where.values())
        return int(self.frame[page]) if used else empty

    def _cells(self, group: int, placement: str) -> list[int]:
        pages = range(group, self.pages, self.groups)
        cells = [page * PAGE + slot for page in pages for slot in range(PAGE)]
        if placement == "reversed":
            cells.reverse()
        elif placement == "scattered":
            np.random.default_rng(5).shuffle(cells)
        return cells

    def _delta(self) -> TableDelta:
        pages = np.array(sorted(self.dirty), np.int32)
        bits = np.zeros((self.pages, PAGE), np.bool_)
        for where in self.where:
            bits.reshape(-1)[list(where.values())] = True
        group = np.where(bits.any(1), np.arange(self.pages) % self.groups, FREE)
        self.dirty = set()
        return TableDelta(
            pages,
            group[pages].astype(np.int32),
            pack_occupancy(bits[pages]),
            np.zeros(pages.size, np.int8),
            self.frame[pages],
        )
