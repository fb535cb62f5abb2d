"""The twins as fixtures, on every device that is here, and the checkpoints that they load."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.checkpoints import open_checkpoint

NEEDS = {"mlx": "mlx", "cuda": "torch"}
TWINS = [
    pytest.param(("mlx", "cpu"), id="mlx-cpu"),
    pytest.param(("cuda", "cpu"), id="cuda-cpu"),
    pytest.param(("mlx", "gpu"), id="mlx-gpu", marks=pytest.mark.mlx_gpu),
    pytest.param(("cuda", "cuda"), id="cuda-gpu", marks=pytest.mark.cuda),
]


@dataclass(frozen=True)
class Twin:
    """One backend on one device, always in float32."""

    name: str
    device: str

    def load(self, folder: Path, streams: int = 1) -> Any:
        backend = importlib.import_module(f"omni_{self.name}")
        return backend.load(
            open_checkpoint(folder), device=self.device, weights="f32", streams=streams
        )

    def embeddings(self, rows: Sequence[np.ndarray] | np.ndarray) -> Any:
        """Embeddings ``[streams, rows, hidden]`` as the backend's own ``encode`` gives them."""
        array = np.asarray(rows, np.float32)
        if self.name == "cuda":
            import torch

            return torch.from_numpy(array).to(self.device)
        import mlx.core as mx

        return mx.array(array)

    def array(self, embeddings: Any) -> np.ndarray:
        """Embeddings as NumPy."""
        return embeddings.cpu().numpy() if self.name == "cuda" else np.array(embeddings)


@pytest.fixture(params=TWINS, scope="session")
def twin(request: pytest.FixtureRequest) -> Twin:
    name, device = request.param
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: no model to compare with")
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip("MLX is not installed" if name == "mlx" else "torch is not installed")
    return Twin(name, device)


@dataclass(frozen=True)
class Tiny:
    """A checkpoint's shape, folder and transformers' own model of it."""

    shape: Any
    folder: Path
    model: Any


@pytest.fixture(scope="session")
def tiny_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints by the name of their shape, each made once."""
    made: dict[str, Tiny] = {}

    def give(name: str) -> Tiny:
        if name not in made:
            from tests.parity import tiny

            shape = tiny.SHAPES[name]
            model = tiny.make(shape)
            made[name] = Tiny(shape, tiny.save(model, tmp_path_factory.mktemp(name)), model)
        return made[name]

    return give


@pytest.fixture(params=["4-2-16", "6-2-32"], scope="session")
def tiny(request: pytest.FixtureRequest, twin: Twin, tiny_of: Any) -> Tiny:
    return tiny_of(request.param)


@pytest.fixture(scope="session")
def backend(twin: Twin, tiny: Tiny) -> Any:
    """The twin with the checkpoint loaded; tests allocate an arena of their own."""
    return twin.load(tiny.folder)
