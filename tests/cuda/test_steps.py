"""Steps through kernels beside the spelled-out path, which the parity tests hold to transformers.

The arena that kernels read begins full of NaN, and with tokens that come after all others.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.backend import PAGE, MovePlan, RestorePlan, StepPlan, StepResult
from omni_core.errors import BackendError
from omni_core.units import EMBEDDED
from tests.parity import tiny
from tests.parity.oracle import Tokens, distance, logits, mixed, text, torch
from tests.parity.planner import Planner
from tests.parity.playing import play

steps = pytest.importorskip("omni_cuda.steps")

SHAPE = tiny.Shape(40, 4, 2, 24, (2, 5, 5), layers=2)
ROWS = 12
LATE = 1 << 40


class Pair:
    """A backend with kernels that runs every plan, and one without on the CPU that checks it."""

    def __init__(self, kernels: Any, plain: Any) -> None:
        self.kernels, self.plain = kernels, plain
        self.device = kernels.arena.keys.device if kernels.arena else None
        self.tables: set[int] = set()
        self.compared = 0

    def allocate(self, planner: Planner, processors: int | None = None, streams: int = 1) -> None:
        layout = planner.layout(SHAPE, streams)
        for backend in (self.kernels, self.plain):
            backend.allocate(layout)
            backend.arena.keys.fill_(float("nan"))
            backend.arena.values.fill_(float("nan"))
        self.kernels._steps._order.fill_(LATE)
        self.kernels._steps._bias.fill_(float("nan"))
        if processors:
            self.kernels._steps._processors = processors

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        there = self.kernels.arena.keys.device
        pages = self.plain.mirror.preview_pages(plan)
        self.tables.add(max(np.unique(group.shift).size for group in pages))
        expected = self.plain.forward(plan, embeddings)
        given = None if embeddings is None else embeddings.to(there)
        found: StepResult = self.kernels.forward(plan, given)
        assert found.logits.dtype == np.float32
        assert found.logits.shape == expected.logits.shape
        if found.logits.size:
            assert distance(found.logits, expected.logits) < 1e-4
            self.compared += 1
        assert (found.mass is None) == (expected.mass is None)
        for mass, truth in zip(found.mass or (), expected.mass or (), strict=True):
            assert mass.shape == truth.shape
            assert np.abs(mass - truth).max() < 1e-4 * truth.max()
            self.compared += 1
        return found

    def move(self, plan: MovePlan) -> None:
        self.plain.move(plan)
        self.kernels.move(plan)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.make(SHAPE)


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(model, tmp_path_factory.mktemp("small"))


@pytest.fixture
def make_pair(
    load_path: Callable[..., Any], kernel_device: str, folder: Path
) -> Callable[..., Pair]:
    return lambda streams=1: Pair(
        load_path(folder, kernel_device, streams=streams),
        load_path(folder, "cpu", kernels=False, streams=streams),
    )


@pytest.fixture
def pair(make_pair: Callable[..., Pair]) -> Pair:
    return make_pair()


def _step(planner: Planner, tokens: Tokens, start: int, stop: int, **how: Any) -> StepPlan:
    part = slice(start, stop)
    ids, rows, places = tokens.ids[None, part], tokens.rows[part], tokens.positions[:, part]
    return planner.step(ids, rows, places, **how)


@pytest.mark.parametrize(
    ("placement", "lengths", "processors"),
    [
        ("scattered", [33, 1, 2, 3, 31, 65], 4),
        ("reversed", [2, 3, 1, 1, 16], None),
        ("sequential", [3, 1, 2, 17], 3),
    ],
)
def test_logits_equal_transformers(
    pair: Pair, model: Any, placement: str, lengths: list[int], processors: int | None
) -> None:
    tokens = text(sum(lengths), seed=len(lengths))
    planner = Planner(pages=4, placement=placement)
    pair.allocate(planner, processors)

    def thin(planner: Planner) -> None:
        planner.evict([rank for rank in sorted(planner.where[0])[2:] if rank % 5 == 3])

    found = play(pair, planner, tokens, lengths, after=thin)
    assert pair.compared == len(lengths)
    assert not planner.masks()[-1].all()
    assert distance(found, logits(model, tokens, [planner.masks()])) < 1e-4


SIZES = [[3, 1], [2, 1], [3, 2], [2, 1, 2], [1, 2], [3, 1, 2]]
"""Tokens of the steps of each frame."""


def _wander(
    pair: Pair, planner: Planner, sizes: list[list[int]], streams: int, seed: int
) -> int:
    """Frames come and go; after each step tokens die and others move. Gives how many moved."""
    draw = np.random.default_rng(seed)
    numbers = draw.standard_normal((streams, ROWS, SHAPE.hidden)).astype(np.float32)
    embeddings = torch.from_numpy(numbers)
    moved = 0
    for frame, lengths in enumerate(sizes):
        # Those far away are read as if they were one distance off.
        shifts = {old: min(50 * (frame - old), 200) for old in range(frame)}
        for turn, size in enumerate(lengths):
            rows = np.full(size, -1, np.int32)
            if size > 2:
                rows[1:] = draw.permutation(ROWS)[: size - 1]
            ids = draw.integers(0, tiny.VOCAB, (streams, size)).astype(np.int32)
            ids[:, rows >= 0] = EMBEDDED
            line = 10 * turn + np.arange(size)
            plan = planner.step(
                ids,
                rows,
                (line + draw.integers(0, 4, (3, 1))).astype(np.int32),
                logits=[[size - 1], range(size), []][(turn + frame) % 3],
                counts=draw.integers(1, 5, size).astype(np.int32) if frame > 1 else None,
                frame=frame,
                shifts=shifts,
                mass=(turn + frame) % 3 != 1,
            )
            pair.forward(plan, embeddings)
            for group in range(planner.groups):
                moved += _thin_and_move(pair, planner, group, draw, frame)
    return moved


def _thin_and_move(
    pair: Pair, planner: Planner, group: int, draw: np.random.Generator, frame: int
) -> int:
    where = planner.where[group]
    frames = {rank: int(planner.frame[cell // PAGE]) for rank, cell in where.items()}
    # Frame 1 goes whole, and its page to another; of the others a token stays.
    gone = [rank for rank, of in frames.items() if of == 1 and frame > 2]
    first = {of: rank for rank, of in reversed(frames.items())}
    loose = [rank for rank in where if rank not in gone and rank not in first.values()]
    planner.evict([*gone, *draw.permutation(loose)[: len(loose) // 3].tolist()], group)
    here = [rank for rank in where if frames[rank] == frame]
    page = where[here[-1]] // PAGE
    free = [cell for cell in planner.free[group] if cell // PAGE == page]
    targets = [where[rank] for rank in here]
    if len(here) > 1:
        pair.move(planner.move(dict(zip(here, targets[1:] + targets[:1], strict=True)), group))
    pair.move(planner.move(dict(zip(here[:2], free[-2:], strict=False)), group))
    return len(here)


@pytest.mark.parametrize(
    ("groups", "streams", "processors", "placement"),
    [(1, 2, 5, "sequential"), (2, 1, 1, "reversed")],
)
def test_frames_merged_tokens_evictions_and_moves(
    make_pair: Callable[..., Pair], groups: int, streams: int, processors: int, placement: str
) -> None:
    pair, planner = make_pair(streams), Planner(7 * groups, groups, placement)
    pair.allocate(planner, processors, streams)
    assert _wander(pair, planner, SIZES, streams, seed=groups) > 30
    assert pair.tables == {1, 2, 3, 4}
    assert pair.compared > 12


def test_five_shifts(pair: Pair) -> None:
    planner = Planner(pages=6)
    pair.allocate(planner, processors=2)
    tokens = text(9)
    for frame, (start, stop) in enumerate([(0, 1), (1, 2), (2, 4), (4, 5), (5, 8), (8, 9)]):
        shifts = {old: 10 * (frame - old) ** 2 for old in range(frame)}
        pair.forward(
            _step(planner, tokens, start, stop, frame=frame, shifts=shifts, mass=frame > 3)
        )
    assert pair.tables == {1, 2, 3, 4, 5, 6}


def test_moved_tokens_keep_their_place_and_their_weight(pair: Pair, model: Any) -> None:
    # Cells that a branch wrote late take tokens that came early.
    tokens = text(12, seed=3)
    planner = Planner(pages=2)
    pair.allocate(planner)
    counts = np.arange(1, 7, dtype=np.int32)
    found = [pair.forward(_step(planner, tokens, 0, 6, counts=counts)).logits[0]]
    late = copy.deepcopy(planner)
    pair.forward(_step(late, tokens, 6, 12))
    cells = [late.where[0][rank] for rank in range(6, 12)]
    pair.move(planner.move(dict(zip(range(3), cells, strict=False))))
    pair.move(planner.move({0: cells[1], 1: cells[0], 2: 3, 3: cells[2]}))
    planner.dirty.update(cell // PAGE for cell in cells)
    found.append(pair.forward(_step(planner, tokens, 6, 12)).logits[0])
    bias = np.log(np.append(counts, np.ones(6))).astype(np.float32)
    expected = logits(model, tokens, bias=bias)
    assert distance(np.concatenate(found), expected) < 1e-4
    assert distance(logits(model, tokens), expected) > 1e-2


def test_a_step_writes_its_own_cells_alone(pair: Pair) -> None:
    tokens = text(9)
    for placement in ("sequential", "reversed"):
        planner = Planner(pages=2, placement=placement)
        pair.allocate(planner)
        plan = _step(planner, tokens, 0, 9)
        pair.forward(plan)
        written = np.zeros(2 * PAGE, np.bool_)
        written[plan.cells[0]] = True
        for part in (pair.kernels.arena.keys, pair.kernels.arena.values):
            numbers = part.isnan().any(dim=-1).cpu().numpy()
            # [layers, streams, pages, kv_heads, PAGE]
            spoiled = numbers.transpose(2, 4, 0, 1, 3).reshape(2 * PAGE, -1)
            assert not spoiled[written].any()
            assert spoiled[~written].all()
        order = pair.kernels._steps._order.view(-1)[: 2 * PAGE].cpu().numpy()
        np.testing.assert_array_equal(order[plan.cells[0]], plan.order)
        assert (order[~written] == LATE).all()


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([-1, 0, 1, 2, -1], "every other"),
        ([3, 4, -1, 5, 6], "whole"),
        ([6, 5, 4, 3, 2], "whole"),
        ([-1, -1, 7, -1, 7], "whole"),
        ([11, 0, 1, -1, -1], "bfloat16"),
    ],
    ids=str,
)
def test_rows_of_embeddings(pair: Pair, rows: list[int], kind: str) -> None:
    draw = np.random.default_rng(0)
    given = torch.from_numpy(draw.standard_normal((1, 2 * ROWS, SHAPE.hidden)).astype(np.float32))
    given = {"whole": given, "every other": given[:, ::2], "bfloat16": given.bfloat16()}[kind]
    planner = Planner(pages=1)
    pair.allocate(planner)
    tokens = text(5)
    tokens = replace(tokens, rows=np.array(rows, np.int32))
    pair.forward(_step(planner, tokens, 0, 5), given)
    assert pair.compared == 1


def test_any_rows_of_logits(pair: Pair) -> None:
    tokens = text(12)
    planner = Planner(pages=1)
    pair.allocate(planner)
    for start, wanted in ((0, []), (3, [2]), (6, [2, 0, 1, 1]), (9, [0, 1, 2])):
        found = pair.forward(_step(planner, tokens, start, start + 3, logits=wanted))
        assert found.logits.shape == (1, len(wanted), tiny.VOCAB)
    assert pair.compared == 3


def test_an_answer_outlives_the_next_step(pair: Pair) -> None:
    tokens = text(6)
    planner = Planner(pages=1)
    pair.allocate(planner)
    first = pair.forward(_step(planner, tokens, 0, 3, mass=True))
    assert first.mass
    kept = first.logits.copy(), first.mass[0].copy()
    pair.forward(_step(planner, tokens, 3, 6, mass=True))
    np.testing.assert_array_equal(first.logits, kept[0])
    np.testing.assert_array_equal(first.mass[0], kept[1])


@pytest.mark.parametrize("layer", [0, 1])
def test_a_step_that_fails_can_be_run_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    tokens = text(9, seed=1)
    planner = Planner(pages=1, placement="reversed")
    pair.allocate(planner)
    counts = np.full(3, 3, np.int32)
    pair.forward(_step(planner, tokens, 0, 3))
    plan = _step(planner, tokens, 3, 6, counts=counts, mass=True)
    attention = pair.kernels.backbone.model.layers[layer].self_attn
    forward = attention.forward

    def fail(*given: Any) -> None:
        forward(*given)
        raise torch.OutOfMemoryError("out of memory\nmany lines")

    for _ in range(2):
        with monkeypatch.context() as broken:
            broken.setattr(attention, "forward", fail)
            with pytest.raises(BackendError, match="out of memory on a step of 3 tokens"):
                pair.kernels.forward(plan)
    pair.forward(plan)
    pair.forward(_step(planner, tokens, 6, 9))


def test_a_branch_leaves_no_trace(pair: Pair, model: Any) -> None:
    tokens, question = text(7, seed=4), text(3, seed=5)
    planner = Planner(pages=2)
    pair.allocate(planner)
    found = []
    for start, stop in ((0, 2), (2, 5), (5, 7)):
        found.append(pair.forward(_step(planner, tokens, start, stop)).logits[0])
        branch = copy.deepcopy(planner)
        moved = replace(question, positions=question.positions + np.int32(stop))
        for part in ((0, 2), (2, 3)):
            pair.forward(_step(branch, moved, *part, logits=[0]))
        planner.dirty.update(cell // PAGE for cell in branch.where[0].values())
    assert distance(np.concatenate(found), logits(model, tokens)) < 1e-4


def test_a_saved_arena_goes_on(
    pair: Pair, load_path: Callable[..., Any], kernel_device: str, folder: Path
) -> None:
    tokens = text(12, seed=6)
    planner = Planner(pages=4, groups=2, placement="scattered")
    pair.allocate(planner)
    pair.forward(_step(planner, tokens, 0, 9))
    planner.evict([2, 3], group=0)
    planner.evict([5], group=1)
    planner.dirty.update(range(4))
    orders = [np.array(sorted(where)) for where in planner.where]
    cells = [
        np.array([where[rank] for rank in order], np.int32)
        for where, order in zip(planner.where, orders, strict=True)
    ]
    plan = RestorePlan(tuple(cells), tuple(orders), planner.move({}).delta)
    stored = [pair.kernels.read(layer, cells[layer]) for layer in range(2)]
    resumed = Pair(load_path(folder, kernel_device), load_path(folder, "cpu", kernels=False))
    for backend in (resumed.kernels, resumed.plain):
        backend.allocate(planner.layout(SHAPE))
        for layer, (keys, values) in enumerate(stored):
            backend.write(layer, cells[layer], keys, values)
        backend.restore(plan)
    for start, stop in ((9, 11), (11, 12)):
        rest = _step(planner, tokens, start, stop)
        np.testing.assert_array_equal(
            resumed.forward(rest).logits, pair.kernels.forward(rest).logits
        )


def test_a_second_session_has_an_arena_of_its_own(pair: Pair, model: Any) -> None:
    for pages, seed in ((1, 0), (3, 1), (2, 2)):
        tokens = text(6, seed)
        planner = Planner(pages, placement="reversed")
        pair.allocate(planner)
        found = play(pair, planner, tokens, [2, 1, 3])
        assert distance(found, logits(model, tokens)) < 1e-4


def test_padding_is_little_and_of_few_kinds() -> None:
    assert [steps.bucket(count) for count in (1, 2, 3, 16, 17)] == [1, 2, 16, 16, 32]
    padded = [steps.bucket(count) for count in range(1, 5001)]
    assert padded == sorted(padded)
    for count, whole in enumerate(padded, 1):
        assert 0 <= whole - count < max(16, count / 2) and whole - count < 64
        assert steps.bucket(whole) == whole
    assert len(set(padded)) < 100
