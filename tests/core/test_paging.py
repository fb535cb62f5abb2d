"""Page tables against a naive model, over random sequences of operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.backend import FREE, PAGE, ArenaLayout, StepPlan, TableDelta
from omni_core.errors import PlanError
from omni_core.ledger import Ledger
from omni_core.paging import LAYOUTS, Layout, PageLayout
from omni_core.paging import layout as named_layout
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
        np.zeros((0, 2), np.int32),
        np.zeros(0, np.int32),
        False,
        delta,
    )


class World:
    """Tables, ledger and a backend's mirror, beside a dict from order to class and frame."""

    def __init__(self, groups: int, layout: str | Layout = "page", pages: int = 24) -> None:
        arena = ArenaLayout(pages, groups, 1, 1, 8)
        placing = named_layout(layout) if isinstance(layout, str) else layout
        self.tables = PageTables(arena, placing)
        self.ledger, self.mirror = Ledger(groups), TableMirror(arena)
        self.kept: list[dict[int, tuple[int, int]]] = [{} for _ in range(groups)]
        self.groups, self.frame = groups, 0

    def append(self, generator: np.random.Generator, count: int, carried_out: bool = True) -> None:
        modality = generator.integers(0, 3, count).astype(np.int8)
        tiers = generator.integers(0, len(Tier), count).astype(np.int8)
        self.frame += int(generator.random() < 0.1)
        try:
            placement = self.tables.place(tiers, modality, self.frame)
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
        turn = np.zeros(count, np.int32)
        self.ledger.append(block(modality), 0, turn, placement.cells)
        kinds = self.tables.layout.kinds(tiers, modality).tolist()
        for kept in self.kept:
            kept |= {o: (kind, self.frame) for o, kind in zip(order.tolist(), kinds, strict=True)}

    def evict(self, generator: np.random.Generator, share: float) -> None:
        for group in range(self.groups):
            view = self.ledger.view()
            gone = np.zeros(view.cells.shape, np.bool_)
            gone[group] = generator.random(len(view)) < share
            lost = view.order[gone[group] & (view.cells[group] >= 0)].tolist()
            self.tables.release(self.ledger.drop(gone))
            for order in lost:
                del self.kept[group][order]

    def roll_back(self, share: float) -> None:
        order = int(self.ledger.next_order * share)
        self.tables.release(self.ledger.truncate(order))
        for kept in self.kept:
            for late in [o for o in kept if o >= order]:
                del kept[late]

    def relabel(self) -> None:
        self.tables.relabel(Tier.OPEN, Tier.TRANSIENT)
        for modality in Modality:
            old, new = self.tables.layout.kinds(
                np.asarray([Tier.OPEN, Tier.TRANSIENT], np.int8), np.full(2, modality, np.int8)
            ).tolist()
            for kept in self.kept:
                kept |= {o: (new, f) for o, (kind, f) in kept.items() if kind == old}

    def migrate(self, urgent: bool) -> None:
        pages = self.tables.usage().pages
        kinds = np.where(self.tables._group == FREE, -1, self.tables._kind)
        plan = self.tables.plan_moves(urgent)
        if plan is None:
            return
        assert np.unique(plan.target).size == plan.target.size
        self.mirror.check(plan)
        self.mirror.commit(plan)
        self.tables.moved(plan)
        self.ledger.move(plan.source, plan.target)
        freed = pages - self.tables.usage().pages
        if self.tables.layout.trim:
            assert self.groups > 1 or self.tables.usage().span == self.tables.usage().pages
        elif self.tables.layout.name == "page":
            assert freed > 0 and plan.source.size <= freed * PAGE
            # Where tokens go in order, a freed page costs at most half a page of copies.
            emptied = np.flatnonzero((kinds >= 0) & (self.tables._group == FREE))
            ordered = int((kinds[emptied] // 8 != Tier.SCORED).sum())
            copied = int((kinds[plan.source // PAGE] // 8 != Tier.SCORED).sum())
            assert copied <= ordered * (PAGE if urgent else PAGE // 2)

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
                assert (self.tables._kind[page], self.tables._frame[page]) == kept[order]
        assert int(self.tables._live.sum()) == sum(map(len, self.kept))
        listed = self.tables._group != FREE
        assert (self.tables._live.any(axis=1) == listed).all()

    def check_mirror(self) -> None:
        view = self.ledger.view()
        for group in range(self.groups):
            zero = np.zeros(self.tables.arena.pages, np.int32)
            live = self.mirror._live(group, self.mirror.group, self.mirror.occupancy, zero)
            frames = [self.kept[group][order][1] for order in live.order.tolist()]
            assert self.mirror.frame[live.cells // PAGE].tolist() == frames
            alive = view.cells[group] >= 0
            assert live.order.tolist() == view.order[alive].tolist()
            assert live.cells.tolist() == view.cells[group][alive].tolist()


operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "fail", "evict", "roll back", "migrate", "compact", "relabel"]),
        st.integers(1, 150),
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("layout", [*LAYOUTS, PageLayout(worth=PAGE, spare=0.0, trim=True)])
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), operations, st.integers(0, 2**31))
def test_no_cell_twice_none_lost(
    layout: str | Layout, groups: int, steps: list[tuple[str, int]], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    world = World(groups, layout)
    for kind, size in steps:
        if kind == "append":
            world.append(generator, size)
        elif kind == "fail":
            world.append(generator, size, carried_out=False)
        elif kind == "evict":
            world.evict(generator, size / 150)
        elif kind == "roll back":
            world.roll_back(size / 150)
        elif kind == "relabel":
            world.relabel()
        else:
            world.migrate(urgent=kind == "compact")
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
    world.migrate(urgent=True)
    sizes = Counter(world.kept[0].values())
    assert world.tables.usage().pages == sum(-(-size // PAGE) for size in sizes.values())


def test_eager_leaves_no_hole_and_keeps_the_order() -> None:
    world = World(1, "eager")
    world.append(np.random.default_rng(0), 600)
    world.evict(np.random.default_rng(1), 0.7)
    world.migrate(urgent=False)
    view = world.ledger.view()
    assert world.tables.usage().span == world.tables.usage().pages == -(-len(view) // PAGE)
    assert (np.diff(view.cells[0]) > 0).all()


def test_native_fills_the_first_hole_and_never_moves_unasked() -> None:
    world = World(1, "native")
    world.append(np.random.default_rng(0), 300)
    world.evict(np.random.default_rng(1), 0.3)
    hole = int(np.flatnonzero(~world.tables._live.reshape(-1))[0])
    assert world.tables.plan_moves() is None
    world.append(np.random.default_rng(2), 1)
    assert world.ledger.view().cells[0, -1] == hole


def test_a_class_grows_at_its_tail_unless_its_tokens_may_go_at_any_time() -> None:
    for tier, refills in ((Tier.TRANSIENT, False), (Tier.SINK, False), (Tier.SCORED, True)):
        tables = PageTables(ArenaLayout(8, 1, 1, 1, 8))
        alike = np.full(100, tier, np.int8), np.zeros(100, np.int8)
        placement = tables.place(*alike)
        tables.take(placement)
        tables.release(placement.cells[:, 5:9])
        after = tables.place(alike[0][:3], alike[1][:3]).cells[0]
        assert (after == placement.cells[0, 5:8]).all() == refills
        assert refills or (after == placement.cells[0, -1] + [1, 2, 3]).all()


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


def test_a_merged_count_moves_with_its_cell() -> None:
    arena = ArenaLayout(4, 1, 1, 1, 8)
    tables, mirror = PageTables(arena, named_layout("eager")), TableMirror(arena)
    placement = tables.place(np.zeros(70, np.int8), np.zeros(70, np.int8))
    counts = np.arange(1, 71, dtype=np.int32)
    plan = replace(
        step_plan(np.arange(70, dtype=np.int64), placement.cells, placement.delta), counts=counts
    )
    mirror.preview(plan)
    mirror.commit(plan)
    tables.take(placement)
    tables.release(placement.cells[:, :3])
    move = tables.plan_moves()
    assert move is not None
    mirror.commit(move)
    live = mirror._live(0, mirror.group, mirror.occupancy, np.zeros(4, np.int32))
    np.testing.assert_allclose(live.bias, np.log(counts[3:]), rtol=1e-6)
    assert live.cells.tolist() == list(range(67))


@given(st.integers(0, 2**31))
def test_occupancy_words_go_there_and_back(seed: int) -> None:
    bits = np.random.default_rng(seed).random((5, PAGE)) < 0.4
    words = pack_occupancy(bits)
    assert words[0, 0] & 1 == bits[0, 0] and words[0, 1] >> 31 == bits[0, 63]
    assert (unpack_occupancy(words) == bits).all()
