"""Graphs of the towers: replays are what was computed at once, and nothing waits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_cuda
from omni_core.checkpoints import open_checkpoint
from omni_core.frontend.base import VisionInput
from tests.parity.oracle import audio, distance, torch, vision
from tests.parity.tiny import MEL_BINS

graphs = pytest.importorskip("omni_cuda.encoders.graphs")

NEAR = 1e-4
"""Of float32; transformers runs on the CPU here, which sums in another order."""
GRIDS = [(1, 4, 4), (1, 10, 14), (3, 6, 10)]
FRAMES = [4, 99, 251]


def _media(grid: tuple[int, int, int], frames: int, seed: int = 0) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    patches = draw.standard_normal((np.prod(grid), 1176)).astype(np.float32)
    mel = draw.standard_normal((MEL_BINS, frames)).astype(np.float32)
    return [VisionInput(patches, grid)], [mel]


def _expected(model: Any, media: tuple[Any, Any]) -> np.ndarray:
    (seen,), (mel,) = media
    return np.concatenate([vision(model, seen.patches, seen.grid), audio(model, mel)])


def _captured(backend: Any) -> list[bool]:
    return [call._captured is not None for call in backend._encoders._kept.values()]


@pytest.fixture
def load(thinker: Any) -> Callable[..., Any]:
    folder: Path = thinker[1]

    def give(weights: str = "f32") -> Any:
        return omni_cuda.load(open_checkpoint(folder), device="cuda", weights=weights)

    return give


@pytest.mark.cuda
@pytest.mark.parametrize("weights", ["f32", "bf16"])
@pytest.mark.parametrize(("grid", "frames"), list(zip(GRIDS, FRAMES, strict=True)))
def test_replays_are_equal_to_the_bit(
    load: Callable[..., Any], grid: tuple[int, int, int], frames: int, weights: str
) -> None:
    backend, media = load(weights), _media(grid, frames)
    at_once = backend.encode(*media)
    assert _captured(backend) == [False, False]
    replayed = [backend.encode(*media) for _ in range(4)]
    assert _captured(backend) == [True, True]
    wide = [each[0].float().cpu().numpy() for each in (at_once, replayed[0])]
    assert distance(*wide) < {"f32": NEAR, "bf16": 0.02}[weights]
    for again in replayed[1:]:
        assert torch.equal(again, replayed[0])


@pytest.mark.cuda
def test_graphs_take_turns_over_other_media(load: Callable[..., Any], thinker: Any) -> None:
    backend = load()
    for seed in range(5):
        for grid, frames in zip(GRIDS, FRAMES, strict=True):
            media = _media(grid, frames, seed)
            found = backend.encode(*media)[0].cpu().numpy()
            assert distance(found, _expected(thinker[2], media)) < NEAR
    assert _captured(backend) == [True] * 6


@pytest.mark.cuda
def test_garbage_does_not_end_a_capture(load: Callable[..., Any], collected_at_once: Any) -> None:
    backend, media = load(), _media(GRIDS[1], FRAMES[1])
    backend.encode(*media)
    with collected_at_once():
        backend.encode(*media)
    assert _captured(backend) == [True, True]


@pytest.mark.cuda
@pytest.mark.parametrize("longest", [0, 10_000])
def test_encoding_does_not_wait_for_the_card(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(graphs, "_LONGEST_GRAPH", longest)
    backend, media = load("bf16"), _media(GRIDS[2], FRAMES[2])
    for _ in range(3):
        found = backend.encode(*media)
    assert _captured(backend) == [longest > 0] * 2
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        # It says that the mode is young.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        again = backend.encode(*media)
        with pytest.raises(RuntimeError, match="synchroniz"):
            again.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, found)


@pytest.mark.cuda
def test_an_evicted_graph_leaves_the_others_as_they_are(
    load: Callable[..., Any], thinker: Any
) -> None:
    backend, media = load(), _media(GRIDS[1], FRAMES[1], seed=1)
    expected = _expected(thinker[2], media)
    for wide in range(1, 20):
        other = _media((1, 2, 2 * wide), 4)[0]
        for _ in range(2):
            backend.encode(other, [])
        found = backend.encode(*media)[0].cpu().numpy()
        assert distance(found, expected) < NEAR
    assert _captured(backend) == [True] * 16


def test_without_room_for_a_graph_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(call: Any, like: torch.Tensor, captures: Any) -> None:
        tried.append(like.numel())

    monkeypatch.setattr(graphs.Call, "_capture", refuse)
    call = graphs.Call(lambda given: given + 1, size=3, captures=object())
    for seed in range(4):
        given = torch.full((3,), float(seed))
        assert torch.equal(call(given), given + 1)
    # Once, when the shape comes again.
    assert tried == [3]


def test_only_short_calls_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(call: Any, like: torch.Tensor, captures: Any) -> None:
        tried.append(like.numel())

    monkeypatch.setattr(graphs.Call, "_capture", refuse)
    for size in (graphs._LONGEST_GRAPH, graphs._LONGEST_GRAPH + 1):
        call = graphs.Call(torch.neg, size, captures=object())
        for _ in range(2):
            call(torch.ones(size))
    assert tried == [graphs._LONGEST_GRAPH]
