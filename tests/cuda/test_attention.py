"""Gather-and-attend against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.model_config import TextConfig
from omni_core.reference.attention import attention_shares, weighted_values
from omni_core.reference.rotary import rotary_tables, rotate

torch = pytest.importorskip("torch")
attention = pytest.importorskip("omni_cuda.attention")
arena = pytest.importorskip("omni_cuda.arena")
rotary = pytest.importorskip("omni_cuda.rotary")

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


def _attend(case, device: str, dtype=None, runs=None):
    """Attention and mass, and the oracle's; ``runs`` are ``(start, stop, shift)``."""
    q, k, v, query_order, order, bias = case
    dtype = dtype or torch.float32
    count, heads, head_dim = q.shape
    scale, cells = head_dim**-0.5, len(order)
    runs = runs or ([(0, cells, 0)] if cells else [])
    text = TextConfig(9, 9, 9, 1, heads, k.shape[1], head_dim, 1e-6, 1e4, (), 9, True)
    positions = np.tile(np.arange(0, 7 * count, 7, dtype=np.int32), (3, 1))
    turns = rotary.StepRotary(positions, text, torch.device(device)).turns(runs)
    none = arena.Cells(torch.empty(0), torch.empty(0))
    orders = (torch.from_numpy(x).to(device) for x in (order, bias, query_order))
    mass = torch.zeros(cells, device=device)
    view = attention.GroupView(none, none, *orders, turns, mass)
    q, k, v = (torch.from_numpy(x).to(device, dtype) for x in (q[None], k[:, None], v[:, None]))
    out = attention.attend(q, k, v, view, scale)
    q, k, v = (x.double().cpu().numpy() for x in (q[0], k[:, 0], v[:, 0]))
    expected = np.zeros((count, heads, head_dim)), np.zeros(cells)
    if cells:
        stretches = [
            (rotate(q, *rotary_tables(positions + np.int32(shift), head_dim, 1e4, ())), k[a:b])
            for a, b, shift in runs
        ]
        shares = attention_shares(stretches, query_order, order, bias, scale)
        expected = weighted_values(shares, v), shares.sum(axis=(0, 1))
    return (out[0].float().cpu().numpy(), mass.cpu().numpy()), expected


def _error(found, expected) -> float:
    gaps = [
        np.linalg.norm(one - other) / np.linalg.norm(other)
        for one, other in zip(found, expected, strict=True)
    ]
    return float(max(gaps))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_oracle(size: tuple[int, ...], device: str) -> None:
    found, expected = _attend(_case(*size), device)
    assert _error(found, expected) < 1e-5


@pytest.mark.parametrize("size", SIZES[1:], ids=str)
def test_runs_of_shifts_equal_the_oracle(size: tuple[int, ...], device: str) -> None:
    cells = size[0]
    runs = [(0, cells // 3, 9000), (cells // 3, cells - 1, 70), (cells - 1, cells, 0)]
    found, expected = _attend(_case(*size), device, runs=runs)
    assert _error(found, expected) < 1e-5
    assert _error(found, _attend(_case(*size), device)[1]) > 1e-3


@pytest.mark.parametrize("size", SIZES[1::2], ids=str)
def test_bfloat16_adds_no_more_than_its_rounding(size: tuple[int, ...], device: str) -> None:
    found, expected = _attend(_case(*size), device, torch.bfloat16)
    assert _error(found, expected) < 1e-2


@pytest.mark.parametrize("runs", [None, [(0, 40, 500), (40, 65, 0)]])
def test_blocks_of_queries_change_nothing(
    device: str, monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, int, int]] | None
) -> None:
    case = _case(65, 2, 3, 64, queries=17)
    whole, _ = _attend(case, device, runs=runs)
    monkeypatch.setattr(attention, "_SCORES", 65 * 6 * 4)
    parts, expected = _attend(case, device, runs=runs)
    assert _error(parts, expected) < 1e-5
    assert _error(parts, whole) < 1e-5


def test_a_query_that_sees_nothing_gives_zero(device: str) -> None:
    q, k, v, _, order, bias = _case(33, 2, 3, 64)
    before = np.array([-2, -1, order[0] - 1, order[0], order[-1]])
    for runs in (None, [(0, 20, 300), (20, 33, 0)]):
        (out, mass), expected = _attend((q, k, v, before, order, bias), device, runs=runs)
        assert (out[:3] == 0).all()
        assert _error((out, mass), expected) < 1e-5
        assert mass.sum() == pytest.approx(2 * 6, rel=1e-5)


def test_no_cell_gives_zero(device: str) -> None:
    q, k, v, query_order, order, bias = _case(33, 2, 3, 64)
    (out, mass), _ = _attend((q, k[:0], v[:0], query_order, order[:0], bias[:0]), device)
    assert out.shape == q.shape
    assert (out == 0).all()
    assert mass.shape == (0,)
