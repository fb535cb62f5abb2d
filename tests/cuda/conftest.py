"""The PyTorch twin alone: what the parity tests cannot ask of both."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


@pytest.fixture
def kernel_device(device: str) -> str:
    """A device that kernels run on: one process cannot interpret them and run them."""
    torch = pytest.importorskip("torch")
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are interpreted on a CPU only where there is no GPU to run them")
    return device


@pytest.fixture
def collected_at_once() -> Callable[[], AbstractContextManager[None]]:
    """Graphs in cycles that nobody holds; inside, whatever is made has them collected."""
    import torch

    @contextmanager
    def collecting() -> Iterator[None]:
        for _ in range(8):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                torch.zeros(4, device="cuda")
            cycle: list[Any] = [graph]
            cycle.append(cycle)
            del graph, cycle
        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            yield
        finally:
            gc.set_threshold(*before)

    return collecting


@pytest.fixture
def load_path(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads ``(folder, device)`` with kernels, or, as is told, without, wherever the device is."""
    import omni_cuda
    from omni_core.checkpoints import open_checkpoint
    from omni_cuda import devices

    def load(
        folder: Path, device: str, *, kernels: bool = True, weights: str = "f32", streams: int = 1
    ) -> Any:
        with monkeypatch.context() as told:
            told.setattr(devices, "has_kernels", lambda device: kernels)
            return omni_cuda.load(
                open_checkpoint(folder), device=device, weights=weights, streams=streams
            )

    return load


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Any]:
    """A checkpoint's shape, its folder and transformers' model of it."""
    from tests.parity import tiny

    shape = tiny.SHAPES["6-2-32"]
    model = tiny.make(shape)
    return shape, tiny.save(model, tmp_path_factory.mktemp("thinker")), model


@pytest.fixture(scope="session")
def small_model() -> Any:
    from tests.parity import tiny
    from tests.parity.wandering import SHAPE

    return tiny.make(SHAPE)


@pytest.fixture(scope="session")
def small_folder(small_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.parity import tiny

    return tiny.save(small_model, tmp_path_factory.mktemp("small"))


@pytest.fixture
def make_pair(load_path: Callable[..., Any], small_folder: Path) -> Callable[..., Any]:
    from tests.cuda.step_pairs import Pair

    def make(device: str, streams: int = 1) -> Any:
        return Pair(
            load_path(small_folder, device, streams=streams),
            load_path(small_folder, "cpu", kernels=False, streams=streams),
        )

    return make


@pytest.fixture
def pair(make_pair: Callable[..., Any], kernel_device: str) -> Any:
    from tests.cuda.step_pairs import spare_products

    made = make_pair(kernel_device)
    spare_products(made.kernels)
    return made


@pytest.fixture
def card(make_pair: Callable[..., Any]) -> Any:
    return make_pair("cuda")
