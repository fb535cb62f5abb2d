"""The PyTorch twin alone: what the parity tests cannot ask of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param("cuda", id="gpu", marks=pytest.mark.cuda),
]


@pytest.fixture(params=DEVICES, scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Any]:
    """A checkpoint's shape, its folder and transformers' model of it."""
    from tests.parity import tiny

    shape = tiny.SHAPES["6-2-32"]
    model = tiny.make(shape)
    return shape, tiny.save(model, tmp_path_factory.mktemp("thinker")), model
