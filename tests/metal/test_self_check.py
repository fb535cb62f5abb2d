"""A GPU is asked whether it runs the kernels as they are meant; here their text answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from metal_kernels.cutting import Gpu  # noqa: E402
from metal_kernels.launch import Launch  # noqa: E402
from omni_core.model_config import TextConfig  # noqa: E402
from omni_mlx.self_check import fault  # noqa: E402
from tests.metal.on_mlx import run_as_text  # noqa: E402

TEXT = TextConfig(9, 256, 9, 2, 4, 2, 64, 1e-6, 1e6, (8, 12, 12), 4096, False)


def unwritten(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    """As if what a kernel writes to its inputs went to a copy of them."""
    copies = {name: inputs[name] + 0 for name in launch.kernel.updates}
    return run_as_text(launch, {**inputs, **copies})


def unmoved(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    return (unwritten if launch.kernel.name == "move" else run_as_text)(launch, inputs)


def louder(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    """Only what reads a second table, a bias or a mass could tell these apart."""
    made = run_as_text(launch, inputs)
    return [2 * made[0]] if launch.kernel.name == "mass" else made


def another_mlx(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    raise TypeError("metal_kernel() got an unexpected keyword argument")


def failing(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    raise RuntimeError("[metal::Device] Unable to build metal library\nfrom source")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cores", [1, 9])
def test_the_shipped_text_has_no_fault(dtype: str, cores: int) -> None:
    assert fault(TEXT, getattr(mx, dtype), Gpu(cores), run_as_text) is None


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (unwritten, "off"),
        (unmoved, "off"),
        (louder, "they are 1 off"),
        (another_mlx, "unexpected keyword"),
        (failing, "[metal::Device] Unable to build metal library from source"),
    ],
)
def test_what_goes_wrong_is_told(run: Callable[..., list[Any]], said: str) -> None:
    found = fault(TEXT, mx.float32, Gpu(4), run)
    assert found is not None and said in found
