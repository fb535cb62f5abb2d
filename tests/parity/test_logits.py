"""Logits and greedy text against transformers, in one shot and in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.oracle import Tokens, distance, logits, mixed, text
from tests.parity.planner import Planner
from tests.parity.playing import play


def test_prefill_of_text_vision_and_audio(backend: Any, tiny: Any, twin: Any) -> None:
    tokens = mixed(tiny.shape.hidden)
    planner = Planner(pages=2)
    backend.allocate(planner.layout(tiny.shape))
    found = play(
        backend, planner, tokens, [tokens.ids.size], twin.embeddings(tokens.embeddings[None])
    )
    assert found.dtype == np.float32
    assert distance(found, logits(tiny.model, tokens)) < 1e-4


def test_only_the_wanted_rows_come_back(backend: Any, tiny: Any) -> None:
    tokens = text(20)
    expected = logits(tiny.model, tokens)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape))
    none = planner.step(tokens.ids[None, :9], tokens.rows[:9], tokens.positions[:, :9], logits=[])
    assert backend.forward(none).logits.shape == (1, 0, expected.shape[1])
    some = planner.step(
        tokens.ids[None, 9:], tokens.rows[9:], tokens.positions[:, 9:], logits=[10, 3]
    )
    assert distance(backend.forward(some).logits[0], expected[[19, 12]]) < 1e-4


def test_greedy_text_is_equal(backend: Any, tiny: Any, twin: Any) -> None:
    tokens = mixed(tiny.shape.hidden, seed=1)
    embeddings = twin.embeddings(tokens.embeddings[None])
    planner = Planner(pages=2)
    backend.allocate(planner.layout(tiny.shape))
    last = play(backend, planner, tokens, [tokens.ids.size], embeddings)[-1]
    expected = logits(tiny.model, tokens)[-1]
    drawn, reference = [], []
    for _ in range(32):
        drawn.append(int(last.argmax()))
        reference.append(int(expected.argmax()))
        tokens = _append(tokens, reference[-1])
        plan = planner.step(
            np.array([[drawn[-1]]], np.int32), tokens.rows[-1:], tokens.positions[:, -1:]
        )
        last = backend.forward(plan).logits[0, -1]
        expected = logits(tiny.model, tokens)[-1]
    assert drawn == reference
    assert len(set(reference)) > 4, "the model repeats itself: equality would say little"


@pytest.mark.parametrize("lengths", [[32, 8, 12], [1] * 52, [6, 15, 22, 9], [51, 1]])
def test_parts_equal_one_shot(backend: Any, tiny: Any, twin: Any, lengths: list[int]) -> None:
    tokens = mixed(tiny.shape.hidden, seed=2)
    embeddings = twin.embeddings(tokens.embeddings[None])
    runs = []
    for parts in ([52], lengths):
        planner = Planner(pages=2)
        backend.allocate(planner.layout(tiny.shape))
        runs.append(play(backend, planner, tokens, parts, embeddings))
    assert distance(runs[1], runs[0]) < 1e-4


def test_merged_tokens_carry_the_log_of_their_count(backend: Any, tiny: Any) -> None:
    tokens = text(30, seed=3)
    counts = np.random.default_rng(3).integers(1, 9, 30).astype(np.int32)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape))
    plan = planner.step(tokens.ids[None], tokens.rows, tokens.positions, counts=counts)
    found = backend.forward(plan).logits[0]
    biased = logits(tiny.model, tokens, bias=np.log(counts).astype(np.float32))
    assert distance(found, biased) < 1e-4
    assert distance(found, logits(tiny.model, tokens)) > 1e-2


def test_far_positions_keep_their_angles(backend: Any, tiny: Any) -> None:
    # Rotary phases depend on differences alone, so a far stretch equals the same one at the start.
    near = text(24, seed=4)
    far = Tokens(near.ids, near.rows, near.positions + 100_000, near.embeddings)
    runs = []
    for tokens in (near, far):
        planner = Planner(pages=1)
        backend.allocate(planner.layout(tiny.shape))
        runs.append(play(backend, planner, tokens, [24]))
    assert distance(runs[1], runs[0]) < 1e-4


def _append(tokens: Tokens, token: int) -> Tokens:
    following = tokens.positions.max() + 1
    return Tokens(
        np.append(tokens.ids, np.int32(token)),
        np.append(tokens.rows, np.int32(-1)),
        np.concatenate([tokens.positions, np.full((3, 1), following, np.int32)], 1),
        tokens.embeddings,
    )
