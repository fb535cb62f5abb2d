"""Eviction, placement, moves and layer groups against transformers under the masks of that time."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from omni_core.errors import OmniError
from tests.parity.oracle import Tokens, distance, logits, mixed, text
from tests.parity.planner import Planner
from tests.parity.playing import play


def _drop_oldest(planner: Planner, keep: int, prefix: int = 4) -> None:
    alive = sorted(planner.where[0])
    planner.evict(alive[prefix : max(prefix, len(alive) - keep + prefix)])


def test_after_evictions_logits_equal_a_masked_dense_run(
    backend: Any, tiny: Any, twin: Any
) -> None:
    tokens = mixed(tiny.shape.hidden)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape))

    def thin(planner: Planner) -> None:
        planner.evict([rank for rank in sorted(planner.where[0])[3:] if rank % 3 == 0])

    lengths = [6, 15, 10, 12, 1, 1, 7]
    found = play(backend, planner, tokens, lengths, twin.embeddings(tokens.embeddings[None]), thin)
    masks = planner.masks()
    assert masks[-1].sum() < 40
    assert distance(found, logits(tiny.model, tokens, [masks])) < 1e-4
    assert distance(found[-1:], logits(tiny.model, tokens)[-1:]) > 1e-2


def test_positions_go_on_after_eviction(backend: Any, tiny: Any) -> None:
    tokens = text(301)
    before = Tokens(
        tokens.ids[:300], tokens.rows[:300], tokens.positions[:, :300], tokens.embeddings
    )
    planner = Planner(pages=3)
    backend.allocate(planner.layout(tiny.shape))
    play(backend, planner, before, [20] * 15, after=lambda planner: _drop_oldest(planner, 128))
    assert len(planner.where[0]) == 128
    last = (tokens.ids[None, 300:], tokens.rows[300:])
    counting_kept = copy.deepcopy(planner).step(*last, np.full((3, 1), 128, np.int32))
    plan = planner.step(*last, tokens.positions[:, 300:])
    assert plan.positions.ravel().tolist() == [300, 300, 300]
    found = backend.forward(plan).logits[0]
    expected = logits(tiny.model, tokens, [planner.masks()])[300:]
    assert distance(found, expected) < 1e-4
    assert distance(backend.forward(counting_kept).logits[0], expected) > 1e-2


@pytest.mark.parametrize("placement", ["reversed", "scattered"])
def test_placement_does_not_matter(backend: Any, tiny: Any, placement: str) -> None:
    tokens = text(150, seed=1)
    runs = []
    for way in ("sequential", placement):
        planner = Planner(pages=5, placement=way)
        backend.allocate(planner.layout(tiny.shape))
        runs.append(
            play(
                backend, planner, tokens, [50] * 3, after=lambda planner: _drop_oldest(planner, 70)
            )
        )
    assert distance(runs[1], runs[0]) < 1e-5


def test_moves_change_nothing(backend: Any, tiny: Any) -> None:
    tokens = text(80, seed=2)
    planner = Planner(pages=4)
    backend.allocate(planner.layout(tiny.shape))

    def shuffle(planner: Planner) -> None:
        # Tokens trade places, and some leave for a page that was free.
        planner.evict(sorted(planner.where[0])[5:11])
        ranks = sorted(planner.where[0])
        cells = [planner.where[0][rank] for rank in ranks]
        backend.move(planner.move(dict(zip(ranks, np.roll(cells, 7).tolist(), strict=True))))
        leaving = dict(zip(ranks[3:9], planner.free[0][-6:], strict=True))
        backend.move(planner.move(leaving))

    found = play(backend, planner, tokens, [30, 20, 20, 10], after=shuffle)
    assert distance(found, logits(tiny.model, tokens, [planner.masks()])) < 1e-4


def test_two_layer_groups_keep_different_tokens(backend: Any, tiny: Any, twin: Any) -> None:
    tokens = mixed(tiny.shape.hidden, seed=3)
    planner = Planner(pages=4, groups=2, placement="scattered")
    backend.allocate(planner.layout(tiny.shape))

    def thin(planner: Planner) -> None:
        planner.evict([r for r in sorted(planner.where[0])[2:] if r % 2], group=0)
        planner.evict([r for r in sorted(planner.where[1])[2:] if r % 5 == 0], group=1)

    found = play(
        backend, planner, tokens, [20, 20, 12], twin.embeddings(tokens.embeddings[None]), thin
    )
    masks = [planner.masks(0), planner.masks(1)]
    assert (masks[0] != masks[1]).any()
    assert distance(found, logits(tiny.model, tokens, masks)) < 1e-4
    assert distance(found[-12:], logits(tiny.model, tokens, masks[::-1])[-12:]) > 1e-2


def test_dead_cells_full_of_nan_do_not_leak(backend: Any, tiny: Any, twin: Any) -> None:
    planner = Planner(pages=2)
    backend.allocate(planner.layout(tiny.shape))
    cells = 128
    nan = twin.embeddings(np.full((1, 1, tiny.shape.hidden), np.nan))
    spoiled = Tokens(
        np.full(cells, -1, np.int32),
        np.zeros(cells, np.int32),
        np.zeros((3, cells), np.int32),
        np.zeros((1, 1), np.float32),
    )
    assert np.isnan(play(backend, planner, spoiled, [cells], nan)).all()
    planner.evict(range(cells))
    tokens = text(70, seed=5)
    found = play(
        backend,
        planner,
        tokens,
        [40, 30],
        after=lambda planner: planner.evict([130, 135]) if 130 in planner.where[0] else None,
    )
    masks = planner.masks()[cells:, cells:]
    assert distance(found, logits(tiny.model, tokens, [masks])) < 1e-4


def test_a_step_that_raises_leaves_the_tables_as_they_were(
    backend: Any, tiny: Any, twin: Any
) -> None:
    tokens = mixed(tiny.shape.hidden, seed=6)
    embeddings = twin.embeddings(tokens.embeddings[None])
    planner = Planner(pages=2)
    backend.allocate(planner.layout(tiny.shape))
    start = Tokens(tokens.ids[:30], tokens.rows[:30], tokens.positions[:, :30], tokens.embeddings)
    play(backend, planner, start, [30], embeddings)
    doomed = copy.deepcopy(planner)
    doomed.evict(range(3, 20))
    rest = (tokens.ids[None, 30:], tokens.rows[30:], tokens.positions[:, 30:])
    with pytest.raises(OmniError, match="embedding"):
        backend.forward(doomed.step(*rest), None)
    found = backend.forward(planner.step(*rest), embeddings).logits[0]
    assert distance(found, logits(tiny.model, tokens)[30:]) < 1e-4


def test_a_token_outside_the_vocabulary_is_refused(backend: Any, tiny: Any) -> None:
    tokens = text(3)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape))
    wrong = np.array([[1, 5000, 2]], np.int32)
    with pytest.raises(OmniError, match="5000"):
        backend.forward(planner.step(wrong, tokens.rows, tokens.positions))


def test_a_plan_for_a_larger_arena_is_refused(backend: Any, tiny: Any) -> None:
    tokens = text(3)
    backend.allocate(Planner(pages=1).layout(tiny.shape))
    planner = Planner(pages=9, placement="reversed")
    with pytest.raises(OmniError, match="arena of 1 pages"):
        backend.forward(planner.step(tokens.ids[None], tokens.rows, tokens.positions))
