"""The PyTorch twin alone: what the parity tests cannot ask of both."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


HAS_GPU = _has_gpu()
# Before Triton is first imported: from then on a process interprets all kernels or none.
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param("cuda", id="gpu", marks=pytest.mark.cuda),
]


@pytest.fixture(params=DEVICES, scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kernel_device(device: str) -> str:
    """A device that kernels run on: one process cannot interpret them and run them."""
    if device == "cpu" and HAS_GPU:
        pytest.skip("kernels are interpreted on a CPU only where there is no GPU to run them")
    return device


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Any]:
    """A checkpoint's shape, its folder and transformers' model of it."""
    from tests.parity import tiny

    shape = tiny.SHAPES["6-2-32"]
    model = tiny.make(shape)
    return shape, tiny.save(model, tmp_path_factory.mktemp("thinker")), model
