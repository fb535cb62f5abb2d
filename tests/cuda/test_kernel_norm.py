"""Norms and gates against float64, and rounded where the spelled-out modules round."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
spelled_out = pytest.importorskip("omni_cuda.ops").SPELLED_OUT
norm = pytest.importorskip("omni_cuda.kernels.norm")
gate = pytest.importorskip("omni_cuda.kernels.gate")

pytestmark = pytest.mark.usefixtures("kernel_device")

EPS = 1e-6
# rows, length of a row
NORMS = [
    (1, 64, "float32"), (1, 3584, "bfloat16"), (3, 8192, "float16"), (31, 80, "float32"),
    (33, 1000, "float16"), (65, 65, "bfloat16"), (79, 2048, "float32"), (8, 5120, "bfloat16"),
]  # fmt: skip
GATES = [
    (1, 1, "float32"), (1, 18_944, "bfloat16"), (3, 11_008, "float16"), (16, 37, "float32"),
    (17, 1000, "float16"), (31, 255, "bfloat16"), (33, 257, "float32"), (65, 1025, "float16"),
]  # fmt: skip


def _drawn(*shape: int, dtype: str, device: str):
    draw = np.random.default_rng(shape[-1])
    return torch.from_numpy(draw.standard_normal(shape)).to(device, getattr(torch, dtype))


def _wide(x) -> np.ndarray:
    return x.double().cpu().numpy()


def _near(found, expected: np.ndarray, roundings: int) -> None:
    """Within so many roundings to the dtype, and what float32 adds."""
    reach = roundings * torch.finfo(found.dtype).eps / 2
    if found.dtype == torch.bfloat16 and found.device.type == "cpu":
        reach *= 2  # Triton's interpreter cuts off where a card rounds.
    gap = np.abs(_wide(found) - expected)
    assert (gap <= np.abs(expected) * (reach + 2e-6) + 1e-7).all()


def _mostly_equal(found, expected) -> None:
    """Equal, but for what another order of a float32 sum tips over."""
    if found.dtype == torch.bfloat16 and found.device.type == "cpu":
        return
    if found.dtype == torch.float32:
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)
        return
    assert (found != expected).float().mean() < 0.01


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)


@pytest.mark.parametrize(("rows", "hidden", "dtype"), NORMS)
def test_the_norm_equals_the_oracle_and_the_module(
    rows: int, hidden: int, dtype: str, device: str
) -> None:
    x = 3 * _drawn(rows, hidden, dtype=dtype, device=device)
    weight = 1 + _drawn(hidden, dtype=dtype, device=device) / 4
    before = x.clone()
    out = torch.full((rows + 2, hidden), torch.nan, dtype=x.dtype, device=device)
    norm.rms_norm(x, weight, EPS, out=out[1:-1])
    _near(out[1:-1], _normed(_wide(x), _wide(weight)), 2)
    assert out[[0, -1]].isnan().all()
    assert torch.equal(x, before)
    assert torch.equal(norm.rms_norm(x, weight, EPS), out[1:-1])
    _mostly_equal(out[1:-1], spelled_out.rms_norm(x, weight, EPS))


@pytest.mark.parametrize(("rows", "hidden", "dtype"), NORMS)
def test_the_sum_is_kept_rounded_and_normalised(
    rows: int, hidden: int, dtype: str, device: str
) -> None:
    x, stream = 2 * _drawn(2, rows, hidden, dtype=dtype, device=device)
    weight = 1 + _drawn(hidden, dtype=dtype, device=device) / 4
    residual = torch.full((rows + 2, hidden), torch.nan, dtype=x.dtype, device=device)
    residual[1:-1] = stream
    before = x.clone()
    out = norm.add_rms_norm(x, residual[1:-1], weight, EPS)
    _near(residual[1:-1], _wide(x) + _wide(stream), 1)
    _mostly_equal(residual[1:-1], x + stream)
    _near(out, _normed(_wide(residual[1:-1]), _wide(weight)), 2)
    assert residual[[0, -1]].isnan().all()
    assert torch.equal(x, before)
    _mostly_equal(out, spelled_out.rms_norm(residual[1:-1], weight, EPS))


def test_axes_before_the_last_are_rows(device: str) -> None:
    x = _drawn(2, 5, 96, dtype="float32", device=device)
    weight = _drawn(96, dtype="float32", device=device)
    last = norm.rms_norm(x[:, -1:], weight, EPS)
    assert last.shape == (2, 1, 96)
    _near(last, _normed(_wide(x), _wide(weight))[:, -1:], 2)
    _near(gate.silu_mul(x), _gated(_wide(x)), 2)


def _gated(x: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return first / (1 + np.exp(-first)) * second


@pytest.mark.parametrize(("rows", "inner", "dtype"), GATES)
def test_the_gate_equals_the_oracle_and_the_module(
    rows: int, inner: int, dtype: str, device: str
) -> None:
    gate_up = 4 * _drawn(rows, 2 * inner, dtype=dtype, device=device)
    out = gate.silu_mul(gate_up)
    assert out.shape == (rows, inner)
    _near(out, _gated(_wide(gate_up)), 2)
    first, second = gate_up.chunk(2, -1)
    _mostly_equal(out, torch.nn.functional.silu(first) * second)


def test_the_gate_stands_large_numbers(device: str) -> None:
    gate_up = torch.tensor([[80.0, -80.0, 0.0, 3.0, 3.0, 3.0]], device=device)
    found = _wide(gate.silu_mul(gate_up))
    np.testing.assert_allclose(found, [[240.0, -80 * np.exp(-80.0) * 3, 0.0]], rtol=1e-4)
