"""Gradients at each layer's keys and values against autograd of transformers' own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_cuda
from omni_core.checkpoints import open_checkpoint
from omni_core.errors import BackendError
from omni_core.units import TokenBlock
from tests.parity.oracle import Tokens, distance, logits, mixed, part, text, torch
from tests.parity.tiny import VOCAB

sensitivity = pytest.importorskip("omni_cuda.sensitivity")

LAST = [3, 77, VOCAB - 1]


@pytest.fixture
def run(thinker: Any, device: str) -> Any:
    return sensitivity.DenseRun(load(thinker[1], device))


def load(folder: Path, device: str, weights: str = "f32") -> Any:
    return omni_cuda.load(open_checkpoint(folder), device=device, weights=weights)


def block(tokens: Tokens, start: int, stop: int) -> TokenBlock:
    """As a frontend hands tokens over; what they are for does not matter here."""
    nothing = np.zeros(stop - start, np.int8)
    positions = tokens.positions[:, start:stop]
    ids, rows = tokens.ids[start:stop], tokens.rows[start:stop]
    return TokenBlock(ids, rows, positions, nothing, nothing, nothing, np.zeros(0, np.int32))


def parts(tokens: Tokens, device: str, cuts: tuple[int, ...] = ()) -> list[Any]:
    """The sequence in parts, each with all embeddings."""
    with torch.inference_mode():
        given = torch.from_numpy(tokens.embeddings[None]).to(device)
    edges = [0, *cuts, tokens.ids.size]
    return [
        (block(tokens, *edges[n : n + 2]), given if tokens.embeddings.size else None)
        for n in range(len(edges) - 1)
    ]


def oracle(model: Any, tokens: Tokens, cached: int, following: list[int]) -> np.ndarray:
    """The same norms by transformers: its projections' outputs, which rotation only turns."""
    given = model.get_input_embeddings()(torch.from_numpy(np.maximum(tokens.ids, 0))).clone()
    places = np.flatnonzero(tokens.rows >= 0)
    given[places] = torch.from_numpy(tokens.embeddings[tokens.rows[places]]).to(given)
    heard: list[list[Any]] = [[], []]

    def hook(into: list[Any]) -> Any:
        return lambda module, args, found: into.append(found)

    hooks = [
        getattr(layer.self_attn, f"{name}_proj").register_forward_hook(hook(into))
        for layer in part(model, "ThinkerTextModel").layers
        for name, into in zip("kv", heard, strict=True)
    ]
    try:
        run = model(
            inputs_embeds=given[None].requires_grad_(),
            position_ids=torch.from_numpy(tokens.positions)[:, None].long(),
            use_cache=False,
        )
    finally:
        for each in hooks:
            each.remove()
    rows = run.logits[0, -len(following) :].float()
    loss = torch.nn.functional.cross_entropy(rows, torch.tensor(following))
    found = torch.autograd.grad(loss, heard[0] + heard[1])
    return np.array([g[0, :cached].double().norm().item() for g in found]).reshape(2, -1)


@pytest.mark.parametrize("tokens", ["text", "mixed"])
def test_gradients_are_those_of_transformers(
    thinker: Any, run: Any, device: str, tokens: str
) -> None:
    shape, _, model = thinker
    sequence = text(40) if tokens == "text" else mixed(shape.hidden)
    cached = sequence.ids.size - 7
    found = run.gradient_norms(parts(sequence, device, (9, 30)), cached, LAST)
    assert found.shape == (2, shape.layers) and found.dtype == np.float64
    expected = oracle(model, sequence, cached, LAST)
    assert (expected > 0).all()
    assert np.allclose(found, expected, rtol=1e-3)


def test_gradients_are_what_a_small_change_of_a_value_does(
    thinker: Any, run: Any, device: str
) -> None:
    # A layer's value biases shift all its values alike: the loss must follow the gradient's sum.
    shape, folder, _ = thinker
    tokens = text(24, seed=5)
    backend = load(folder, device)
    layer = backend.backbone.model.layers[1].self_attn.qkv_proj

    def loss(step: float) -> float:
        with torch.no_grad():
            layer.bias[-shape.head_dim :] += step
            row = sensitivity.DenseRun(backend).next_logits(parts(tokens, device))
            layer.bias[-shape.head_dim :] -= step
        row = row.astype(np.float64)
        return float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[LAST[0]])

    slope = (loss(0.01) - loss(-0.01)) / 0.02
    # The slope is a sum over tokens and channels: by Cauchy-Schwarz no more than this.
    norm = run.gradient_norms(parts(tokens, device), 24, LAST[:1])[1, 1]
    assert 0.01 * norm < abs(slope) <= norm * np.sqrt(24 * shape.head_dim) * 1.01


def test_next_logits_are_those_of_transformers(thinker: Any, run: Any, device: str) -> None:
    shape, _, model = thinker
    sequence = mixed(shape.hidden, seed=1)
    found = run.next_logits(parts(sequence, device, (1,)))
    assert found.dtype == np.float32
    assert distance(found[None], logits(model, sequence)[-1:]) < 1e-4


def test_only_what_is_cached_counts(run: Any, device: str) -> None:
    tokens = text(30)
    few, all_ = (run.gradient_norms(parts(tokens, device), n, LAST) for n in (11, 30))
    assert (few < all_).all() and (few > 0).all()


def test_the_last_layers_keys_of_a_token_alone_tell_nothing(run: Any, device: str) -> None:
    # A single token attends to itself alone, whatever its key.
    found = run.gradient_norms(parts(text(1), device), 1, LAST[:1])
    assert np.allclose(found[0], 0, atol=1e-6) and (found[1] > 1e-3).all()


def test_nothing_of_the_backend_changes(thinker: Any, device: str) -> None:
    backend = load(thinker[1], device)
    before = {name: w.clone() for name, w in backend.backbone.state_dict().items()}
    sensitivity.DenseRun(backend).gradient_norms(parts(text(20), device), 20, LAST)
    for name, weight in backend.backbone.state_dict().items():
        assert torch.equal(weight, before[name]) and weight.grad is None
    assert backend.arena is None


@pytest.mark.parametrize("weights", ["bf16", "8"])
def test_other_numbers_than_float32_are_refused(thinker: Any, device: str, weights: str) -> None:
    with pytest.raises(BackendError, match=r"^gradients are taken in float32, .*--weights f32$"):
        sensitivity.DenseRun(load(thinker[1], device, weights))


def test_out_of_memory_is_one_line(run: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory\nmany lines")

    monkeypatch.setattr(torch.autograd, "grad", fail)
    with pytest.raises(BackendError, match=r"^out of memory on the gradients of 20 tokens") as told:
        run.gradient_norms(parts(text(20), device), 20, LAST)
    assert "\n" not in str(told.value)
    monkeypatch.setattr(torch.autograd, "grad", lambda *_: (_ for _ in ()).throw(RuntimeError("x")))
    with pytest.raises(RuntimeError, match="x"):
        run.gradient_norms(parts(text(20), device), 20, LAST)
