"""The backend: failures half-way, number formats, memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_cuda
from omni_core.checkpoints import open_checkpoint
from omni_core.errors import BackendError, BudgetError, PlanError
from omni_core.frontend.base import VisionInput
from omni_core.model_config import AudioConfig, VisionConfig
from tests.parity.oracle import Tokens, distance, logits, mixed, text, torch
from tests.parity.planner import Planner
from tests.parity.playing import play
from tests.parity.tiny import MEL_BINS

devices = pytest.importorskip("omni_cuda.devices")


def _load(folder: Path, device: str, weights: str = "f32") -> Any:
    return omni_cuda.load(open_checkpoint(folder), device=device, weights=weights)


def _logits(backend: Any, shape: Any, tokens: Tokens) -> np.ndarray:
    planner = Planner(pages=2)
    backend.allocate(planner.layout(shape))
    given = torch.from_numpy(tokens.embeddings[None]).to(backend.arena.keys.device)
    return play(backend, planner, tokens, [tokens.ids.size], given)


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_a_step_that_runs_out_of_memory_changes_nothing(
    thinker: Any, device: str, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    shape, folder, model = thinker
    backend = _load(folder, device)
    tokens = text(40)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(shape))
    start = planner.step(tokens.ids[None, :20], tokens.rows[:20], tokens.positions[:, :20])
    first = backend.forward(start).logits[0]
    tables = [backend.mirror.group.copy(), backend.mirror.occupancy.copy()]
    plan = planner.step(tokens.ids[None, 20:], tokens.rows[20:], tokens.positions[:, 20:])
    attention = backend.backbone.model.layers[layer].self_attn
    forward = attention.forward

    def fail(*given: Any) -> Any:
        # Once the layer has written its keys.
        forward(*given)
        raise torch.OutOfMemoryError("out of memory\nmany lines")

    with monkeypatch.context() as broken:
        broken.setattr(attention, "forward", fail)
        with pytest.raises(BackendError, match=r"^out of memory on a step of 20 tokens .*\)") as e:
            backend.forward(plan)
    assert "\n" not in str(e.value)
    np.testing.assert_array_equal(backend.mirror.group, tables[0])
    np.testing.assert_array_equal(backend.mirror.occupancy, tables[1])
    found = np.concatenate([first, backend.forward(plan).logits[0]])
    assert distance(found, logits(model, tokens)) < 1e-4


def test_bfloat16(thinker: Any, device: str) -> None:
    shape, folder, model = thinker
    tokens = mixed(shape.hidden)
    backend = _load(folder, device, "bf16")
    assert backend.element == 2
    found = _logits(backend, shape, tokens)
    assert found.dtype == np.float32
    assert backend.arena.keys.dtype == torch.bfloat16
    assert 1e-4 < distance(found, logits(model, tokens)) < 0.05


def _gap(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _in_steps(backend: Any) -> np.ndarray:
    planner = Planner(pages=2)
    backend.allocate(planner.layout(backend.config.text))
    return play(backend, planner, text(100), [33, 1, 1, 1, 2, 1, 1, 60])


@pytest.mark.cuda
def test_kernels_in_bfloat16_stay_close_to_the_spelled_out_path(
    thinker: Any, load_path: Callable[..., Any]
) -> None:
    runs = [
        _in_steps(load_path(thinker[1], "cuda", kernels=kernels, weights="bf16"))
        for kernels in (True, False)
    ]
    assert 0 < _gap(*runs) < 2e-2


@pytest.mark.cuda
@pytest.mark.parametrize(("weights", "exact"), [("bf16", "f32"), ("8", "8"), ("4", "4")])
def test_kernels_add_no_error_to_that_of_bfloat16(
    load_path: Callable[..., Any], untrained: Path, weights: str, exact: str
) -> None:
    truth = _in_steps(load_path(untrained, "cpu", kernels=False, weights=exact))
    plain, kernels = (
        _gap(_in_steps(load_path(untrained, "cuda", kernels=which, weights=weights)), truth)
        for which in (False, True)
    )
    # In 4 bits, weights that were rounded to bfloat16 first fall into other steps.
    assert 0 < plain < 0.3
    assert 0 < kernels < 1.5 * plain


def test_bfloat16_towers(thinker: Any, device: str) -> None:
    _, folder, _ = thinker
    draw = np.random.default_rng(0)
    vision = VisionInput(draw.standard_normal((3 * 24, 1176)).astype(np.float32), (3, 4, 6))
    mel = draw.standard_normal((MEL_BINS, 251)).astype(np.float32)
    runs = [
        _load(folder, device, weights).encode([vision], [mel])[0].float().cpu().numpy()
        for weights in ("bf16", "f32")
    ]
    gap = np.linalg.norm(runs[0] - runs[1]) / np.linalg.norm(runs[1])
    assert 1e-4 < gap < 0.05


def test_8_bits(thinker: Any, device: str) -> None:
    shape, folder, model = thinker
    tokens = mixed(shape.hidden)
    whole, small = _load(folder, device, "f32"), _load(folder, device, "8")
    found = _logits(small, shape, tokens)
    assert 1e-4 < distance(found, logits(model, tokens)) < 0.05
    linear = sum(
        part.weight.numel()
        for part in whole.backbone.model.layers.modules()
        if isinstance(part, torch.nn.Linear)
    )
    freed = whole.memory().accounted - (small.memory().accounted - small.arena.bytes)
    assert freed > 2.5 * linear


def test_towers_are_built_without_drawing_their_weights() -> None:
    from omni_cuda.encoders import audio, vision

    tower = audio.build(AudioConfig(24, 640, 10, 2560, 128, 1500, 100, 64))
    assert len(tower.layers) == 24
    assert {weight.device.type for weight in tower.parameters()} == {"meta"}
    assert {(b.device.type, b.dtype) for b in tower.buffers()} == {("cpu", torch.float32)}
    tower = vision.build(
        VisionConfig(32, 640, 1712, 10, 3, 14, 2, 2, 112, (7, 15, 23, 31), 64, 1e4)
    )
    assert len(tower.blocks) == 32
    assert {weight.device.type for weight in tower.parameters()} == {"meta"}


def test_arrays_of_any_layout_are_taken(thinker: Any, device: str) -> None:
    shape, folder, model = thinker
    tokens = text(30)
    backend = _load(folder, device)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(shape))
    plan = planner.step(tokens.ids[None], tokens.rows, tokens.positions)
    for field in ("tokens", "rows", "order", "counts", "cells", "logits"):
        given = np.flip(np.flip(getattr(plan, field)).copy())
        given.flags.writeable = False
        plan = dataclasses.replace(plan, **{field: given})
    assert distance(backend.forward(plan).logits[0], logits(model, tokens)) < 1e-4


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_an_encoder_out_of_memory_is_one_line(
    thinker: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    backend = _load(thinker[1], "cpu")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(backend.audio, "forward", fail)
    with pytest.raises(BackendError, match="out of memory on the encoders"):
        backend.encode([], [np.zeros((MEL_BINS, 40), np.float32)])


def test_weights_beyond_the_machine_are_refused_before_they_are_read(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "free_bytes", lambda device: 1000)
    monkeypatch.setattr("omni_cuda.weights.safe_open", None)
    with pytest.raises(BudgetError, match=r"the model takes .* use --weights 8"):
        _load(thinker[1], "cpu")


def test_a_layout_of_another_model_is_refused(thinker: Any) -> None:
    shape, folder, _ = thinker
    backend = _load(folder, "cpu")
    layout = Planner(pages=1).layout(shape)
    for change in ({"head_dim": 64}, {"layers_per_group": 3}, {"streams": 2}, {"kv_heads": 6}):
        with pytest.raises(PlanError, match="the layout has"):
            backend.allocate(dataclasses.replace(layout, **change))


def test_a_plan_before_the_arena_is_refused(thinker: Any) -> None:
    backend = _load(thinker[1], "cpu")
    tokens = text(2)
    plan = Planner(pages=1).step(tokens.ids[None], tokens.rows, tokens.positions)
    with pytest.raises(PlanError, match="call allocate"):
        backend.forward(plan)


def test_allocating_again_starts_afresh(thinker: Any, device: str) -> None:
    shape, folder, model = thinker
    backend = _load(folder, device)
    for seed in (0, 1):
        tokens = text(40, seed)
        assert distance(_logits(backend, shape, tokens), logits(model, tokens)) < 1e-4


def test_memory_is_flat_over_units_of_differing_lengths(thinker: Any, device: str) -> None:
    shape, folder, _ = thinker
    backend = _load(folder, device)
    planner = Planner(pages=6)
    backend.allocate(planner.layout(shape))
    draw = np.random.default_rng(0)
    held = []
    for unit in range(600):
        high, wide = (2 * int(n) for n in draw.integers(1, 6, 2))
        patches = draw.standard_normal((high * wide, 1176)).astype(np.float32)
        mel = draw.standard_normal((MEL_BINS, int(draw.integers(3, 200)))).astype(np.float32)
        embeddings = backend.encode([VisionInput(patches, (1, high, wide))], [mel])
        rows = np.arange(embeddings.shape[1], dtype=np.int32)
        positions = np.tile(rows + 100 * unit, (3, 1)).astype(np.int32)
        media = np.full((1, rows.size), -1, np.int32)
        plan = planner.step(media, rows, positions, logits=[0], mass=unit % 3 == 0)
        assert np.isfinite(backend.forward(plan, embeddings).logits).all()
        planner.evict(sorted(planner.where[0])[:-256])
        planner.seen[0].clear()  # the test's own notes grow
        report = backend.memory()
        held.append(report.measured + report.cached)
        assert report.peak >= report.measured > 0
        assert report.accounted > backend.arena.bytes > 0
    assert max(held[200:]) - max(held[100:200]) < 12e6


@pytest.mark.cuda
def test_memory_of_the_card_is_level_once_each_kind_of_step_has_run(thinker: Any) -> None:
    shape, folder, _ = thinker
    backend = _load(folder, "cuda")
    planner = Planner(pages=2)
    backend.allocate(planner.layout(shape))
    draw = np.random.default_rng(0)
    # Fewer paddings than lengths: each round has all, and all are graphs after two.
    kinds = [(size, mass) for size in (1, 2, 9, 13, 20, 31, 33, 48, 60, 64) for mass in (0, 1)]
    held = []
    for _ in range(10):
        for size, mass in draw.permutation(kinds).tolist():
            tokens = text(size, seed=len(held))
            plan = planner.step(
                tokens.ids[None], tokens.rows, tokens.positions, logits=[0], mass=bool(mass)
            )
            assert np.isfinite(backend.forward(plan).logits).all()
            planner.evict(sorted(planner.where[0]))
            planner.seen[0].clear()
            held.append(torch.cuda.memory_reserved())
    assert len(held) == 200
    assert max(held[100:]) <= held[99]
