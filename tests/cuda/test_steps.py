"""Steps through kernels beside the spelled-out path, which parity tests hold to transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.backend import PAGE, RestorePlan
from omni_core.errors import BackendError
from tests.parity import tiny
from tests.parity.oracle import distance, logits, text, torch
from tests.parity.planner import Planner
from tests.parity.playing import play
from tests.parity.wandering import ROWS, SHAPE, step, wander

ops = pytest.importorskip("omni_cuda.ops")
steps = pytest.importorskip("omni_cuda.steps")
step_pairs = pytest.importorskip("tests.cuda.step_pairs")

LATE = step_pairs.LATE

SIZES = [[3, 1], [2, 1], [2, 2], [2, 1, 2], [1, 2], [3, 1, 2]]
"""Tokens of the steps of each frame."""


@pytest.mark.parametrize(
    ("placement", "lengths", "processors"),
    [
        ("scattered", [33, 1, 2, 65], 4),
        ("reversed", [2, 3, 1, 1, 16], None),
        ("sequential", [3, 1, 17], 3),
    ],
)
def test_logits_equal_transformers(
    pair: Any, small_model: Any, placement: str, lengths: list[int], processors: int | None
) -> None:
    if placement == "sequential":
        pair.kernels._ops = ops.fused()
    tokens = text(sum(lengths), seed=len(lengths))
    planner = Planner(pages=4, placement=placement)
    pair.allocate(planner, processors)

    def thin(planner: Planner) -> None:
        planner.evict([rank for rank in sorted(planner.where[0])[2:] if rank % 5 == 3])

    found = play(pair, planner, tokens, lengths, after=thin)
    assert pair.compared == len(lengths)
    assert not planner.masks()[-1].all()
    assert distance(found, logits(small_model, tokens, [planner.masks()])) < 1e-4


@pytest.mark.parametrize(
    ("groups", "streams", "processors", "placement"),
    [(1, 2, 1, "sequential"), (2, 1, 3, "reversed")],
)
def test_frames_merged_tokens_evictions_and_moves(
    make_pair: Callable[..., Any],
    kernel_device: str,
    groups: int,
    streams: int,
    processors: int,
    placement: str,
) -> None:
    pair, planner = make_pair(kernel_device, streams), Planner(7 * groups, groups, placement)
    step_pairs.spare_products(pair.kernels)
    pair.allocate(planner, processors, streams)
    assert wander(pair, planner, SIZES, streams, seed=groups) > 30
    assert pair.tables == {1, 2, 3, 4, 5}
    assert pair.compared > 12


def test_an_answer_token_by_token(pair: Any) -> None:
    # What is listed stays the same but for: new subblocks and pages, one that dies, a moved token
    # and another distance.
    tokens = text(13, seed=8)
    planner = Planner(pages=3)
    planner.free[0] = [28, 29, 30, 92, 93, 94, 96, 97, 130, 131, 132, 133, 134, 100]
    pair.allocate(planner, processors=2)
    for turn in range(13):
        shifts = {0: 5 if turn < 11 else 400} if turn > 2 else {}
        pair.forward(
            step(planner, tokens, turn, turn + 1, frame=int(turn > 2), shifts=shifts, logits=[0])
        )
        if turn == 8:
            planner.evict([3, 4, 5])
        if turn == 9:
            pair.move(planner.move({8: 100}))
    assert pair.compared == 13


def test_moved_tokens_keep_their_place_and_their_weight(pair: Any, small_model: Any) -> None:
    # Cells that a branch wrote late take tokens that came early.
    tokens = text(12, seed=3)
    planner = Planner(pages=2)
    pair.allocate(planner)
    counts = np.arange(1, 7, dtype=np.int32)
    found = [pair.forward(step(planner, tokens, 0, 6, counts=counts)).logits[0]]
    late = copy.deepcopy(planner)
    pair.forward(step(late, tokens, 6, 12))
    cells = [late.where[0][rank] for rank in range(6, 12)]
    pair.move(planner.move(dict(zip(range(3), cells, strict=False))))
    pair.move(planner.move({0: cells[1], 1: cells[0], 2: 3, 3: cells[2]}))
    planner.dirty.update(cell // PAGE for cell in cells)
    found.append(pair.forward(step(planner, tokens, 6, 12)).logits[0])
    bias = np.log(np.append(counts, np.ones(6))).astype(np.float32)
    expected = logits(small_model, tokens, bias=bias)
    assert distance(np.concatenate(found), expected) < 1e-4
    assert distance(logits(small_model, tokens), expected) > 1e-2


def test_a_step_writes_its_own_cells_alone(pair: Any) -> None:
    tokens = text(9)
    for placement in ("sequential", "reversed"):
        planner = Planner(pages=2, placement=placement)
        pair.allocate(planner)
        plan = step(planner, tokens, 0, 9)
        pair.forward(plan)
        written = np.zeros(2 * PAGE, np.bool_)
        written[plan.cells[0]] = True
        for part in (pair.kernels.arena.keys, pair.kernels.arena.values):
            numbers = part.isnan().any(dim=-1).cpu().numpy()
            # [layers, streams, pages, kv_heads, PAGE]
            spoiled = numbers.transpose(2, 4, 0, 1, 3).reshape(2 * PAGE, -1)
            assert not spoiled[written].any()
            assert spoiled[~written].all()
        order = pair.kernels._steps.shared.order.view(-1)[: 2 * PAGE].cpu().numpy()
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
def test_rows_of_embeddings(pair: Any, rows: list[int], kind: str) -> None:
    draw = np.random.default_rng(0)
    given = torch.from_numpy(draw.standard_normal((1, 2 * ROWS, SHAPE.hidden)).astype(np.float32))
    given = {"whole": given, "every other": given[:, ::2], "bfloat16": given.bfloat16()}[kind]
    planner = Planner(pages=1)
    pair.allocate(planner)
    tokens = text(5)
    tokens = replace(tokens, rows=np.array(rows, np.int32))
    pair.forward(step(planner, tokens, 0, 5), given)
    assert pair.compared == 1


def test_any_rows_of_logits(pair: Any) -> None:
    tokens = text(12)
    planner = Planner(pages=1)
    pair.allocate(planner)
    for start, wanted in ((0, []), (3, [2]), (6, [2, 0, 1, 1]), (9, [0, 1, 2])):
        found = pair.forward(step(planner, tokens, start, start + 3, logits=wanted))
        assert found.logits.shape == (1, len(wanted), tiny.VOCAB)
    assert pair.compared == 3


def test_an_answer_outlives_the_next_step(pair: Any) -> None:
    tokens = text(6)
    planner = Planner(pages=1)
    pair.allocate(planner)
    first = pair.forward(step(planner, tokens, 0, 3, mass=True))
    assert first.mass
    kept = first.logits.copy(), first.mass[0].copy()
    pair.forward(step(planner, tokens, 3, 6, mass=True))
    np.testing.assert_array_equal(first.logits, kept[0])
    np.testing.assert_array_equal(first.mass[0], kept[1])


@pytest.mark.parametrize("layer", [0, 1])
def test_a_step_that_fails_can_be_run_again(
    pair: Any, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    tokens = text(9, seed=1)
    planner = Planner(pages=1, placement="reversed")
    pair.allocate(planner)
    counts = np.full(3, 3, np.int32)
    pair.forward(step(planner, tokens, 0, 3))
    plan = step(planner, tokens, 3, 6, counts=counts, mass=True)
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
    pair.forward(step(planner, tokens, 6, 9))


def test_a_branch_leaves_no_trace(pair: Any, small_model: Any) -> None:
    tokens, question = text(7, seed=4), text(3, seed=5)
    planner = Planner(pages=2)
    pair.allocate(planner)
    found = []
    for start, stop in ((0, 2), (2, 5), (5, 7)):
        found.append(pair.forward(step(planner, tokens, start, stop)).logits[0])
        branch = copy.deepcopy(planner)
        moved = replace(question, positions=question.positions + np.int32(stop))
        for part in ((0, 2), (2, 3)):
            pair.forward(step(branch, moved, *part, logits=[0]))
        planner.dirty.update(cell // PAGE for cell in branch.where[0].values())
    assert distance(np.concatenate(found), logits(small_model, tokens)) < 1e-4


def test_a_saved_arena_goes_on(
    pair: Any, make_pair: Callable[..., Any], kernel_device: str
) -> None:
    tokens = text(12, seed=6)
    planner = Planner(pages=4, groups=2, placement="scattered")
    pair.allocate(planner)
    counts = np.arange(1, 10, dtype=np.int32)
    pair.forward(step(planner, tokens, 0, 9, counts=counts))
    planner.evict([2, 3], group=0)
    planner.evict([5], group=1)
    planner.dirty.update(range(4))
    orders = [np.array(sorted(where)) for where in planner.where]
    cells = [
        np.array([where[rank] for rank in order], np.int32)
        for where, order in zip(planner.where, orders, strict=True)
    ]
    held = tuple(counts[order] for order in orders)
    plan = RestorePlan(tuple(cells), tuple(orders), held, planner.move({}).delta)
    stored = [pair.kernels.read(layer, cells[layer]) for layer in range(2)]
    resumed = make_pair(kernel_device)
    step_pairs.spare_products(resumed.kernels)
    for backend in (resumed.kernels, resumed.plain):
        backend.allocate(planner.layout(SHAPE))
        for layer, (keys, values) in enumerate(stored):
            backend.write(layer, cells[layer], keys, values)
        if backend is resumed.kernels:
            backend._steps.shared.order.fill_(LATE)
            backend._steps.shared.bias.fill_(float("nan"))
        backend.restore(plan)
    for start, stop in ((9, 11), (11, 12)):
        rest = step(planner, tokens, start, stop)
        np.testing.assert_array_equal(
            resumed.forward(rest).logits, pair.kernels.forward(rest).logits
        )


def test_a_second_session_has_an_arena_of_its_own(pair: Any, small_model: Any) -> None:
    for pages, seed in ((1, 0), (3, 1), (2, 2)):
        tokens = text(6, seed)
        planner = Planner(pages, placement="reversed")
        pair.allocate(planner)
        found = play(pair, planner, tokens, [2, 1, 3])
        assert distance(found, logits(small_model, tokens)) < 1e-4


def test_padding_is_little_and_of_few_kinds() -> None:
    assert [steps.bucket(count) for count in (1, 2, 3, 16, 17)] == [1, 2, 16, 16, 32]
    padded = [steps.bucket(count) for count in range(1, 5001)]
    assert padded == sorted(padded)
    for count, whole in enumerate(padded, 1):
        assert 0 <= whole - count < max(16, count / 2) and whole - count < 64
        assert steps.bucket(whole) == whole
    assert len(set(padded)) < 100
