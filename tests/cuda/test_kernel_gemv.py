"""Products with one row against float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
gemv = pytest.importorskip("omni_cuda.kernels.gemv")

pytestmark = pytest.mark.usefixtures("kernel_device")

# outputs, inputs
SIZES = [(1, 16), (3, 64), (5, 1023), (37, 1024), (100, 1025), (129, 3584)]
LARGE = [(4608, 3584), (3584, 18_944), (9000, 2048)]
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


def _drawn(outputs: int, inputs: int, dtype: str, device: str):
    draw = np.random.default_rng(outputs + inputs)
    kind = getattr(torch, dtype)
    x = torch.from_numpy(draw.standard_normal((1, 1, inputs))).to(device, kind)
    # Weights end where the memory behind them holds NaN.
    pool = torch.full((outputs + 40, inputs), torch.nan, dtype=kind, device=device)
    pool[:outputs] = torch.from_numpy(draw.standard_normal((outputs, inputs)) / inputs**0.5)
    bias = torch.from_numpy(draw.standard_normal(outputs)).to(device, kind)
    return x, pool[:outputs], bias


def _error(found, expected) -> float:
    return float(((found.double() - expected).norm() / expected.norm()).cpu())


def _check(outputs: int, inputs: int, dtype: str, device: str) -> None:
    x, weight, bias = _drawn(outputs, inputs, dtype, device)
    plain = x.double() @ weight.double().T
    found = gemv.multiply_row(x, weight)
    assert found.shape == (1, 1, outputs) and found.dtype == x.dtype
    assert _error(found, plain) < TOLERANCE[dtype]
    assert _error(gemv.multiply_row(x, weight, bias), plain + bias.double()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_oracle(size: tuple[int, int], dtype: str, device: str) -> None:
    _check(*size, dtype, device)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_gate_equals_the_oracle(size: tuple[int, int], dtype: str, device: str) -> None:
    x, weight, _ = _drawn(2 * size[0], size[1], dtype, device)
    gate, up = (x.double() @ weight.double().T).chunk(2, -1)
    found = gemv.multiply_row_gated(x, weight)
    assert found.shape == (1, 1, size[0])
    assert _error(found, torch.nn.functional.silu(gate) * up) < TOLERANCE[dtype]


@pytest.mark.cuda
@pytest.mark.parametrize("size", LARGE, ids=str)
def test_bfloat16_at_the_sizes_of_models(size: tuple[int, int]) -> None:
    _check(*size, "bfloat16", "cuda")
    x, weight, _ = _drawn(*size, "bfloat16", "cuda")
    gate, up = (x.double() @ weight.double().T).chunk(2, -1)
    found = gemv.multiply_row_gated(x, weight)
    assert _error(found, torch.nn.functional.silu(gate) * up) < TOLERANCE["bfloat16"]
