"""The towers against transformers', on odd grids and lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.frontend.base import VisionInput
from tests.parity.oracle import Tokens, audio, distance, logits, mixed, vision
from tests.parity.planner import Planner
from tests.parity.playing import play
from tests.parity.tiny import MEL_BINS

# Windows are 2 x 2 merged cells: odd merged sides leave part windows.
GRIDS = [(1, 2, 2), (1, 2, 6), (2, 6, 10), (3, 4, 14), (1, 10, 6), (3, 8, 8)]
# A window is 100 frames; 3 frames are the fewest that give a token.
FRAMES = [3, 4, 37, 99, 100, 101, 150, 200, 251, 302]


def _vision(grid: tuple[int, int, int], seed: int = 0) -> VisionInput:
    draw = np.random.default_rng(seed)
    count = grid[0] * grid[1] * grid[2]
    return VisionInput(draw.standard_normal((count, 1176)).astype(np.float32), grid)


def _mel(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((MEL_BINS, frames)).astype(np.float32)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_vision(backend: Any, tiny: Any, twin: Any, grid: tuple[int, int, int]) -> None:
    given = _vision(grid)
    found = twin.array(backend.encode([given], []))
    assert found.shape == (1, grid[0] * grid[1] * grid[2] // 4, tiny.shape.hidden)
    assert distance(found[0], vision(tiny.model, given.patches, given.grid)) < 1e-4


@pytest.mark.parametrize("frames", FRAMES)
def test_audio(backend: Any, tiny: Any, twin: Any, frames: int) -> None:
    mel = _mel(frames)
    found = twin.array(backend.encode([], [mel]))
    assert found.shape == (1, ((frames - 1) // 2 - 1) // 2 + 1, tiny.shape.hidden)
    assert distance(found[0], audio(tiny.model, mel)) < 1e-4


def test_vision_rows_come_before_audio_rows(backend: Any, tiny: Any, twin: Any) -> None:
    given, mel = _vision((1, 6, 6), seed=1), _mel(43, seed=1)
    found = twin.array(backend.encode([given], [mel]))[0]
    expected = [vision(tiny.model, given.patches, given.grid), audio(tiny.model, mel)]
    assert distance(found, np.concatenate(expected)) < 1e-4


def test_nothing_to_encode_gives_no_rows(backend: Any, tiny: Any, twin: Any) -> None:
    assert twin.array(backend.encode([], [])).shape == (1, 0, tiny.shape.hidden)


def test_encoded_media_reach_the_logits(backend: Any, tiny: Any, twin: Any) -> None:
    given, mel = _vision((1, 6, 10), seed=2), _mel(88, seed=2)
    embeddings = backend.encode([given], [mel])
    rows = np.concatenate([vision(tiny.model, given.patches, given.grid), audio(tiny.model, mel)])
    frame = mixed(tiny.shape.hidden)
    tokens = Tokens(frame.ids, frame.rows, frame.positions, rows)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape))
    found = play(backend, planner, tokens, [52], embeddings)
    assert distance(found, logits(tiny.model, tokens)) < 1e-4
