from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from omni_core.model_config import TextConfig  # noqa: E402
from omni_core.paging.mirror import LiveCells  # noqa: E402
from omni_core.reference.attention import (  # noqa: E402
    attention_shares,
    masked_attention,
    weighted_values,
)
from omni_core.reference.rotary import rotary_tables, rotate  # noqa: E402
from omni_mlx import attention  # noqa: E402
from omni_mlx.attention import (  # noqa: E402
    Orders,
    sparse_page_attention,
    turned_attention,
    visibility,
)
from omni_mlx.rotary import StepRotary  # noqa: E402

KV_HEADS = 2


def run(order, query_order, bias, *, group=3, head_dim=16, seed=0):
    rng = np.random.default_rng(seed)
    order, query_order = np.asarray(order, np.int64), np.asarray(query_order, np.int64)
    q = rng.normal(size=(query_order.size, KV_HEADS * group, head_dim)).astype(np.float32)
    k, v = rng.normal(size=(2, order.size, KV_HEADS, head_dim)).astype(np.float32)
    bias = np.broadcast_to(np.asarray(bias, np.float32), order.shape)
    cells = np.arange(order.size, dtype=np.int32)
    live = LiveCells(cells, order, bias, np.zeros_like(cells))

    def heads_first(x):
        return mx.array(x).swapaxes(0, 1)[None]

    found = sparse_page_attention(
        heads_first(q),
        heads_first(k),
        heads_first(v),
        visibility(live, query_order, mx.float32),
        0.25,
    )
    wanted = masked_attention(q, k, v, query_order, order, bias, 0.25)
    return np.array(found)[0].swapaxes(0, 1), wanted


@pytest.mark.parametrize("count", [1, 31, 63, 65, 300])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_equals_the_oracle_after_gaps_in_the_order(count, group):
    order = np.sort(np.random.default_rng(count).choice(1000, count, replace=False))
    found, wanted = run(order, order[-5:], 0.0, group=group, head_dim=80 if group == 3 else 64)
    assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("cells", [0, 9])
@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_no_queries_get_nothing(cells, bias):
    found, wanted = run(np.arange(cells), [], bias)
    assert found.shape == wanted.shape == (0, 6, 16)


def test_equals_the_oracle_where_newer_cells_exist():
    found, wanted = run(np.arange(20), [3, 9, 15], 0.0)
    assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("query_order", [[19], [18, 19], [0, 7, 30]])
def test_bias_counts(query_order):
    bias = np.log(np.arange(1, 21))
    found, wanted = run(np.arange(20), query_order, bias)
    plain, _ = run(np.arange(20), query_order, 0.0)
    assert np.abs(found - wanted).max() < 1e-5
    assert np.abs(found - plain).max() > 1e-3


@pytest.mark.parametrize("bias", [0.0, 1.5])
def test_a_query_that_sees_nothing_gives_zero(bias):
    found, wanted = run(np.arange(5, 25), [2, 4, 5, 30], bias)
    assert (found[:2] == 0).all()
    assert np.abs(found - wanted).max() < 1e-5


def test_no_cell_at_all_gives_zero():
    found, _ = run([], [0, 1], 0.0)
    assert found.shape == (2, 6, 16)
    assert (found == 0).all()


def turned(shift, order, query_order, bias, *, group=3, seed=0):
    """Attention and mass over cells of several shifts, and the oracle's."""
    text = TextConfig(9, 9, 9, 1, KV_HEADS * group, KV_HEADS, 16, 1e-6, 1e4, (2, 3, 3), 9, True)
    rng = np.random.default_rng(seed)
    order, query_order = np.asarray(order, np.int64), np.asarray(query_order, np.int64)
    q = rng.normal(size=(query_order.size, KV_HEADS * group, 16)).astype(np.float32)
    k, v = rng.normal(size=(2, order.size, KV_HEADS, 16)).astype(np.float32)
    positions = np.sort(rng.integers(0, 300, (3, query_order.size)), axis=1).astype(np.int32)
    bias = np.broadcast_to(np.asarray(bias, np.float32), order.shape)
    cells = np.arange(order.size, dtype=np.int32)
    live = LiveCells(cells, order, bias, np.asarray(shift, np.int32))

    def heads_first(x):
        return mx.array(x).swapaxes(0, 1)[None]

    turns = StepRotary(positions, text).turns(live.runs())
    given = (heads_first(q), heads_first(k), heads_first(v))
    out, mass = turned_attention(*given, turns, Orders.of(live, query_order), 0.25)

    def queries(shift):
        tables = rotary_tables(positions + np.int32(shift), 16, 1e4, text.mrope_section)
        return rotate(q.astype(np.float64), *tables)

    runs = [(queries(shift), k[start:stop]) for start, stop, shift in live.runs()]
    shares = attention_shares(runs, query_order, order, bias, 0.25)
    wanted = weighted_values(shares, v), shares.sum(axis=(0, 1))
    return (np.array(out)[0].swapaxes(0, 1), np.array(mass)), wanted, len(turns.runs)


@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("shift", [[0] * 20, [900] * 20, [900] * 7 + [41] + [0] * 12])
@pytest.mark.parametrize("bias", [0.0, np.log(np.arange(1, 21))], ids=["plain", "merged"])
def test_runs_of_shifts_equal_the_oracle(group, shift, bias):
    query_order = [-4, 0, 8, 19, 30]
    (found, mass), (wanted, expected), runs = turned(
        shift, np.arange(20), query_order, bias, group=group
    )
    assert runs == len(set(shift))
    assert np.abs(found - wanted).max() < 1e-5
    assert (found[0] == 0).all()
    assert np.abs(mass - expected).max() < 1e-5 * expected.max()
    assert mass.sum() == pytest.approx(4 * 2 * group, rel=1e-5)


def test_blocks_of_queries_change_nothing(monkeypatch):
    case = [70] * 30 + [5] * 20 + [0] * 15, np.arange(65), np.arange(48, 65), 0.0
    whole, wanted, _ = turned(*case)
    monkeypatch.setattr(attention, "SCORES", 65 * 6 * 4)
    parts, _, _ = turned(*case)
    for one, other, expected in zip(parts, whole, wanted, strict=True):
        assert np.abs(one - expected).max() < 1e-5 * np.abs(expected).max()
        assert np.abs(one - other).max() < 1e-5
