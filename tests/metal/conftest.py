"""The kernels' text runs as C++ on any Linux machine, and on a GPU wherever MLX has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from metal_kernels.launch import Launch
from tests.conftest import installed
from tests.metal.numbers import AnyArray
from tests.metal.runner import run

Run = Callable[[Launch, Mapping[str, AnyArray]], dict[str, AnyArray]]


@pytest.fixture(params=["cpu", "gpu"], scope="session")
def run_kernel(request: pytest.FixtureRequest) -> Run:
    """Runs a launch on the CPU, as C++, or on MLX's GPU, be it by Metal or by CUDA."""
    if request.param == "cpu":
        return run
    if not installed("mlx"):
        pytest.skip("MLX is not installed")
    import mlx.core as mx

    if not mx.is_available(mx.gpu):
        pytest.skip("no GPU for MLX (Metal or CUDA)")
    from tests.metal.on_gpu import run_on_gpu

    return run_on_gpu
