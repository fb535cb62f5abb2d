"""Page tables against a naive model, over random sequences of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.backend import FREE, PAGE, ArenaLayout, StepPlan, TableDelta
from omni_core.errors import PlanError
from omni_core.ledger import Ledger
from omni_core.paging.mirror import TableMirror, pack_occupancy, unpack_occupancy
from omni_core.paging.table import NoFreePage, PageTables
from omni_core.units import Modality, Role, Tier, TokenBlock


def block(modality: np.ndarray) -> TokenBlock:
    text = TokenBlock.text([5] * modality.size, 0, Role.CONTENT)
    return TokenBlock(
        text.tokens, text.rows, text.positions, modality, modality, text.role, text.offset
    )


def step_plan(order: np.ndarray, cells: np.ndarray, delta: TableDelta) -> StepPlan:
    count = order.size
    return StepPlan(
        np.zeros((1, count), np.int32),
        np.full(count, -1, np.int32),
        np.zeros((3, count), np.int32),
        order,
        np.ones(count, np.int32),
        cells,
        np.zeros(0, np.int32),
        delta,
    )


class World:
    """Tables, ledger and a backend's mirror, beside a dict from order to nothing but class."""

    def __init__(self, groups: int, pages: int = 24) -> None:
        layout = ArenaLayout(pages, groups, 1, 1, 8)
        self.tables, self.ledger, self.mirror = (
            PageTables(layout),
            Ledger(groups),
            TableMirror(layout),
        )
        self.kept: list[dict[int, tuple[int, int]]] = [{} for _ in range(groups)]
        self.groups = groups

    def append(self, generator: np.random.Generator, count: int, carried_out: bool = True) -> None:
        modality = generator.integers(0, 3, count).astype(np.int8)
        tiers = generator.integers(0, 4, count).astype(np.int8)
        try:
            placement = self.tables.place(tiers, modality)
        except NoFreePage:
            return
        if not carried_out:
            return
        order = np.arange(count, dtype=np.int64) + self.ledger.next_order
        plan = step_plan(order, placement.cells, placement.delta)
        self.mirror.check(plan)
        self.mirror.preview(plan)
        self.mirror.commit(plan)
        self.tables.take(placement)
        self.ledger.append(block(modality), 0, 0, tiers, placement.cells)
        for kept in self.kept:
            kept |= dict(
                zip(
                    order.tolist(), zip(tiers.tolist(), modality.tolist(), strict=True), strict=True
                )
            )

    def evict(self, generator: np.random.Generator, share: float) -> None:
        for group in range(self.groups):
            view = self.ledger.view()
            gone = generator.random(len(view)) < share
            lost = view.order[gone & (view.cells[group] >= 0)].tolist()
            self.tables.release(self.ledger.drop(group, gone))
            for order in lost:
                del self.kept[group][order]

    def roll_back(self, share: float) -> None:
        order = int(self.ledger.next_order * share)
        self.tables.release(self.ledger.truncate(order))
        for kept in self.kept:
            for late in [o for o in kept if o >= order]:
                del kept[late]

    def migrate(self, worth: int) -> None:
        pages = self.tables.usage().pages
        plan = self.tables.plan_moves(worth)
        if plan is None:
            return
        assert np.unique(plan.target).size == plan.target.size
        self.mirror.check(plan)
        self.mirror.commit(plan)
        self.tables.moved(plan)
        self.ledger.move(plan.source, plan.target)
        freed = pages - self.tables.usage().pages
        assert freed > 0 and plan.source.size <= freed * max(worth, 1)

    def sync(self) -> None:
        """One more step, so that the backend has heard of everything."""
        before = self.ledger.next_order
        self.append(np.random.default_rng(0), 1)
        if self.ledger.next_order == before:
            self.roll_back(0.5)
            self.append(np.random.default_rng(0), 1)

    def check(self) -> None:
        view = self.ledger.view()
        assert (np.diff(view.order) > 0).all()
        for group, kept in enumerate(self.kept):
            cells = view.cells[group]
            alive = cells >= 0
            assert view.order[alive].tolist() == sorted(kept)
            assert np.unique(cells[alive]).size == alive.sum()
            pages = cells[alive] // PAGE
            assert (self.tables._group[pages] == group).all()
            for order, page in zip(view.order[alive].tolist(), pages.tolist(), strict=True):
                tier, modality = kept[order]
                assert (self.tables._tier[page], self.tables._modality[page]) == (tier, modality)
        assert int(self.tables._live.sum()) == sum(map(len, self.kept))
        listed = self.tables._group != FREE
        assert (self.tables._live.any(axis=1) == listed).all()

    def check_mirror(self) -> None:
        view = self.ledger.view()
        for group in range(self.groups):
            live = self.mirror._live(group, self.mirror.group, self.mirror.occupancy)
            alive = view.cells[group] >= 0
            assert live.order.tolist() == view.order[alive].tolist()
            assert live.cells.tolist() == view.cells[group][alive].tolist()


operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "fail", "evict", "roll back", "migrate", "compact"]),
        st.integers(1, 150),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 2), operations, st.integers(0, 2**31))
def test_no_cell_twice_none_lost(groups: int, steps: list[tuple[str, int]], seed: int) -> None:
    generator = np.random.default_rng(seed)
    world = World(groups)
    for kind, size in steps:
        if kind == "append":
            world.append(generator, size)
        elif kind == "fail":
            world.append(generator, size, carried_out=False)
        elif kind == "evict":
            world.evict(generator, size / 150)
        elif kind == "roll back":
            world.roll_back(size / 150)
        else:
            world.migrate(PAGE // 2 if kind == "migrate" else PAGE)
        world.check()
    world.sync()
    world.check()
    world.check_mirror()


def test_placement_is_a_function_of_what_is_stored() -> None:
    world, other = World(1), World(1)
    for each in (world, other):
        each.append(np.random.default_rng(1), 100)
    mark = world.ledger.next_order
    world.append(np.random.default_rng(2), 90)
    world.tables.release(world.ledger.truncate(mark))
    for each in (world, other):
        each.append(np.random.default_rng(3), 70)
    assert world.ledger.view().cells.tolist() == other.ledger.view().cells.tolist()


def test_compaction_reaches_the_fewest_pages_a_class() -> None:
    world = World(1)
    world.append(np.random.default_rng(0), 600)
    world.evict(np.random.default_rng(1), 0.7)
    world.migrate(PAGE)
    view = world.ledger.view()
    fewest = sum(
        -(-int(((view.tier == tier) & (view.modality == kind)).sum()) // PAGE)
        for tier in Tier
        for kind in Modality
    )
    assert world.tables.usage().pages == fewest


def test_a_full_pool_says_so_and_changes_nothing() -> None:
    tables = PageTables(ArenaLayout(2, 1, 1, 1, 8))
    zeros = np.zeros(129, np.int8)
    with pytest.raises(NoFreePage):
        tables.place(zeros, zeros)
    assert tables.free_pages() == 2
    tables.take(tables.place(zeros[:128], zeros[:128]))
    assert tables.free_pages() == 0


def test_plans_of_another_arena_are_refused() -> None:
    mirror = TableMirror(ArenaLayout(2, 1, 1, 1, 8))
    delta = PageTables(ArenaLayout(2, 1, 1, 1, 8)).place(*[np.zeros(1, np.int8)] * 2).delta
    order = np.zeros(1, np.int64)
    with pytest.raises(PlanError, match="2 pages"):
        mirror.check(step_plan(order, np.asarray([[128]], np.int32), delta))
    with pytest.raises(PlanError, match="2 layer groups"):
        mirror.check(step_plan(order, np.zeros((2, 1), np.int32), delta))


@given(st.integers(0, 2**31))
def test_occupancy_words_go_there_and_back(seed: int) -> None:
    bits = np.random.default_rng(seed).random((5, PAGE)) < 0.4
    words = pack_occupancy(bits)
    assert words[0, 0] & 1 == bits[0, 0] and words[0, 1] >> 31 == bits[0, 63]
    assert (unpack_occupancy(words) == bits).all()
