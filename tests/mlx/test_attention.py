from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from omni_core.paging.mirror import LiveCells  # noqa: E402
from omni_core.reference.attention import masked_attention  # noqa: E402
from omni_mlx.attention import sparse_page_attention, visibility  # noqa: E402

KV_HEADS = 2


def run(order, query_order, bias, *, group=3, head_dim=16, seed=0):
    rng = np.random.default_rng(seed)
    order, query_order = np.asarray(order, np.int64), np.asarray(query_order, np.int64)
    q = rng.normal(size=(query_order.size, KV_HEADS * group, head_dim)).astype(np.float32)
    k, v = rng.normal(size=(2, order.size, KV_HEADS, head_dim)).astype(np.float32)
    bias = np.broadcast_to(np.asarray(bias, np.float32), order.shape)
    live = LiveCells(np.arange(order.size, dtype=np.int32), order, bias)

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
