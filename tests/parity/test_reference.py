"""The float64 backbone: it is transformers', and both twins agree with it on this machine."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.checkpoints import open_checkpoint
from omni_core.model_config import thinker_config
from omni_core.reference.backbone import ReferenceBackbone, read_floats
from omni_core.reference.check import worst_difference
from omnilive.models import load
from tests.parity import oracle


@pytest.fixture(scope="module")
def reference(untrained):
    checkpoint = open_checkpoint(untrained)
    config = thinker_config(checkpoint.config)
    return ReferenceBackbone(checkpoint, config), config.text


@pytest.mark.parametrize("backend", ["mlx", "cuda"])
def test_a_backend_agrees_with_float64(backend: str, untrained, reference) -> None:
    pytest.importorskip("mlx.core" if backend == "mlx" else "torch")
    model = load(str(untrained), backend=backend, device="cpu", weights="f32")
    assert worst_difference(model.backend, reference[1], reference[0]) < 1e-4
    short = load(str(untrained), backend=backend, device="cpu", weights="bf16")
    assert 1e-4 < worst_difference(short.backend, reference[1], reference[0]) < 0.3


def test_a_fault_in_a_backend_is_seen(untrained, reference, monkeypatch) -> None:
    pytest.importorskip("torch")
    model = load(str(untrained), backend="cuda", device="cpu", weights="f32")
    forward = model.backend.forward

    def off_by_one(plan, embeddings=None):
        object.__setattr__(plan, "positions", plan.positions + (plan.order > 60))
        return forward(plan, embeddings)

    monkeypatch.setattr(model.backend, "forward", off_by_one)
    assert worst_difference(model.backend, reference[1], reference[0]) > 1e-3

    def not_finite(plan, embeddings=None):
        result = forward(plan, embeddings)
        result.logits[..., -1, 0] = np.nan
        return result

    monkeypatch.setattr(model.backend, "forward", not_finite)
    assert worst_difference(model.backend, reference[1], reference[0]) == np.inf


def test_it_is_what_transformers_computes(untrained, reference) -> None:
    transformers = pytest.importorskip("transformers")
    kind = transformers.Qwen2_5OmniThinkerForConditionalGeneration
    model = kind.from_pretrained(untrained, dtype=oracle.torch.float32, attn_implementation="eager")
    tokens = oracle.text(24, 3)
    mask = np.tri(24, dtype=np.bool_)
    mask[12:, 2:7] = False
    found = reference[0].logits(tokens.ids, tokens.positions, mask)
    assert oracle.distance(found, oracle.logits(model, tokens, [mask])) < 1e-4


@pytest.mark.parametrize(("kind", "tolerance"), [("F32", 0), ("F16", 1e-3), ("BF16", 1e-2)])
def test_stored_floats_are_read(kind: str, tolerance: float, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    from omni_core.safetensors_header import read_header

    values = np.random.default_rng(1).standard_normal((3, 5))
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    stored = torch.from_numpy(values).to(dtype)
    file = tmp_path / "one.safetensors"
    safetensors.save_file({"other": torch.zeros(7, dtype=dtype), "x": stored}, file)
    found = read_floats(read_header(file)["x"])
    assert found.dtype == np.float64
    assert np.array_equal(found, stored.double().numpy())
    assert np.allclose(found, values, rtol=tolerance, atol=1e-7)
