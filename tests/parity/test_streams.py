"""Streams of one layout: one plan, an answer for each stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.errors import OmniError
from omni_core.frontend.base import VisionInput
from tests.parity.oracle import Tokens, distance, logits, mixed
from tests.parity.planner import Planner


def test_two_streams_with_different_tokens(twin: Any, tiny: Any) -> None:
    backend = twin.load(tiny.folder, streams=2)
    streams = [mixed(tiny.shape.hidden, seed) for seed in (0, 1)]
    embeddings = twin.embeddings([tokens.embeddings for tokens in streams])
    ids = np.stack([tokens.ids for tokens in streams])
    rows, positions = streams[0].rows, streams[0].positions
    planner = Planner(pages=3, placement="scattered")
    backend.allocate(planner.layout(tiny.shape, streams=2))
    parts = []
    for part in (slice(0, 30), slice(30, 52)):
        plan = planner.step(ids[:, part], rows[part], positions[:, part])
        parts.append(backend.forward(plan, embeddings).logits)
        planner.evict(range(5, 25) if part.start == 0 else [])
    found = np.concatenate(parts, 1)
    for index, tokens in enumerate(streams):
        expected = logits(tiny.model, tokens, [planner.masks()])
        assert distance(found[index], expected) < 1e-4
    assert distance(found[0], found[1]) > 1e-2


def test_all_streams_see_the_same_media(twin: Any, tiny: Any) -> None:
    draw = np.random.default_rng(0)
    patches = draw.standard_normal((24, 1176)).astype(np.float32)
    backend = twin.load(tiny.folder, streams=3)
    found = twin.array(backend.encode([VisionInput(patches, (1, 4, 6))], []))
    assert found.shape == (3, 6, tiny.shape.hidden)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_the_number_of_streams_is_checked(twin: Any, tiny: Any) -> None:
    backend = twin.load(tiny.folder, streams=2)
    tokens: Tokens = mixed(tiny.shape.hidden)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape, streams=2))
    plan = planner.step(tokens.ids[None, :4], tokens.rows[:4], tokens.positions[:, :4])
    with pytest.raises(OmniError, match="streams"):
        backend.forward(plan)
