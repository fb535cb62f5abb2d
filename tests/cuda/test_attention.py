"""Gather-and-attend against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.reference.attention import masked_attention

torch = pytest.importorskip("torch")
attention = pytest.importorskip("omni_cuda.attention")
arena = pytest.importorskip("omni_cuda.arena")

# cells, kv heads, query heads a key head, head_dim
SIZES = [
    (1, 1, 1, 64), (31, 2, 3, 80), (32, 1, 4, 96), (33, 4, 7, 128),
    (63, 2, 8, 64), (65, 3, 1, 96), (1000, 2, 7, 80),
]  # fmt: skip


def _case(cells: int, kv_heads: int, group: int, head_dim: int, queries: int = 5):
    draw = np.random.default_rng(cells)
    q = draw.standard_normal((queries, kv_heads * group, head_dim)).astype(np.float32)
    k, v = draw.standard_normal((2, cells, kv_heads, head_dim)).astype(np.float32)
    order = np.sort(draw.choice(cells * 3, cells, replace=False))
    query_order = np.sort(draw.integers(0, cells * 3, queries))
    bias = np.log(draw.integers(1, 6, cells)).astype(np.float32)
    return q, k, v, query_order, order, bias


def _attend(case, device: str, dtype=None):
    q, k, v, query_order, order, bias = case
    dtype = dtype or torch.float32
    none = arena.Cells(torch.empty(0), torch.empty(0))
    view = attention.GroupView(
        none, none, *(torch.from_numpy(x).to(device) for x in (order, bias, query_order))
    )
    q, k, v = (torch.from_numpy(x).to(device, dtype) for x in (q[None], k[:, None], v[:, None]))
    out = attention.attend(q, k, v, view, q.shape[-1] ** -0.5)
    inputs = [x.float().cpu().numpy() for x in (q[0], k[:, 0], v[:, 0])]
    expected = masked_attention(*inputs, query_order, order, bias, q.shape[-1] ** -0.5)
    return out[0].float().cpu().numpy(), expected


def _error(out: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(out - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_oracle(size: tuple[int, ...], device: str) -> None:
    out, expected = _attend(_case(*size), device)
    assert _error(out, expected) < 1e-5


@pytest.mark.parametrize("size", SIZES[1::2], ids=str)
def test_bfloat16_adds_no_more_than_its_rounding(size: tuple[int, ...], device: str) -> None:
    out, expected = _attend(_case(*size), device, torch.bfloat16)
    assert _error(out, expected) < 1e-2


def test_blocks_of_queries_change_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(65, 2, 3, 64, queries=17)
    whole, _ = _attend(case, device)
    monkeypatch.setattr(attention, "_SCORES", 65 * 6 * 4)
    parts, expected = _attend(case, device)
    assert _error(parts, expected) < 1e-5
    np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_a_query_that_sees_nothing_gives_zero(device: str) -> None:
    q, k, v, _, order, bias = _case(33, 2, 3, 64)
    before = np.array([-2, -1, order[0] - 1, order[0], order[-1]])
    out, expected = _attend((q, k, v, before, order, bias), device)
    assert (out[:3] == 0).all()
    assert _error(out, expected) < 1e-5


def test_no_cell_gives_zero(device: str) -> None:
    q, k, v, query_order, order, bias = _case(33, 2, 3, 64)
    out, _ = _attend((q, k[:0], v[:0], query_order, order[:0], bias[:0]), device)
    assert out.shape == q.shape
    assert (out == 0).all()
