"""Pruning by proxy query: what is kept, how far the output may move, and layers apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.errors import BudgetError, OmniError
from omni_core.pruning import (
    contribution,
    keep_best,
    keep_subblocks,
    last_text,
    masked_layers,
    newest,
    proxy_query,
    proxy_shares,
)
from omni_core.reference.attention import attention_shares, masked_attention, weighted_values
from omni_core.reference.rotary import rotary_tables, rotate
from omni_core.units import Role

scores = st.lists(st.floats(0, 1e9) | st.sampled_from([0.0, 1.0]), min_size=1, max_size=200)


@given(
    st.integers(1, 90),
    st.sampled_from([(1, 1), (3, 1), (4, 2), (7, 7)]),
    st.integers(1, 33),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.1, 1.0, 30.0]),
    st.data(),
)
def test_the_output_moves_by_no_more_than_pruned_mass_times_the_values_diameter(
    cells: int,
    heads: tuple[int, int],
    size: int,
    queries: int,
    seed: int,
    sharpness: float,
    data: st.DataObject,
) -> None:
    draw = np.random.default_rng(seed)
    q_heads, kv_heads = heads
    q = sharpness * draw.standard_normal((queries, q_heads, size))
    k = draw.standard_normal((cells, kv_heads, size))
    v = draw.standard_normal((cells, kv_heads, size)) * draw.lognormal(0, 2, (cells, kv_heads, 1))
    bias = np.log(draw.integers(1, 9, cells))
    order = np.zeros(cells, np.int64)
    latest = np.zeros(queries, np.int64)
    budget = data.draw(st.integers(1, cells))
    norms = np.linalg.norm(v, axis=-1)
    proxy = proxy_shares(q.mean(0), k, bias, size**-0.5)
    kept = keep_best(contribution(proxy, norms), budget, np.zeros(cells, np.bool_))
    shares = attention_shares([(q, k)], latest, order, bias, size**-0.5)
    whole = weighted_values(shares, v)
    pruned = masked_attention(q, k[kept], v[kept], latest, order[kept], bias[kept], size**-0.5)
    moved = np.linalg.norm(whole - pruned, axis=-1)
    lost = shares[..., ~kept].sum(-1).T
    apart = np.linalg.norm(v[:, None] - v[None], axis=-1).max(axis=(0, 1))
    bound = lost * np.repeat(apart, q_heads // kv_heads)
    assert (moved <= bound * (1 + 1e-9) + 1e-9 * norms.max()).all()


def test_a_contribution_is_share_times_norm_over_heads_and_queries() -> None:
    draw = np.random.default_rng(0)
    shares, norms = draw.random((4, 3, 11)), draw.random((11, 2))
    expected = [
        sum(shares[h, t, n] * norms[n, h // 2] for h in range(4) for t in range(3))
        for n in range(11)
    ]
    assert np.allclose(contribution(shares, norms), expected)


def test_the_proxy_sees_every_cell_with_its_bias() -> None:
    draw = np.random.default_rng(1)
    q, k = draw.standard_normal((4, 8)), draw.standard_normal((9, 2, 8))
    bias = np.log(np.arange(1.0, 10))
    found = proxy_shares(q, k, bias, 0.5)
    for head in range(4):
        weights = np.exp(k[:, head // 2] @ q[head] * 0.5) * np.arange(1, 10)
        assert np.allclose(found[head, 0], weights / weights.sum())


@given(scores, st.data())
def test_the_best_are_kept_and_what_must_stay(drawn: list[float], data: st.DataObject) -> None:
    each = np.array(drawn)
    must = np.array(data.draw(st.lists(st.booleans(), min_size=each.size, max_size=each.size)))
    budget = data.draw(st.integers(int(must.sum()), each.size + 5))
    kept = keep_best(each, budget, must)
    assert kept.sum() == min(budget, each.size)
    assert kept[must].all()
    chosen, gone = each[kept & ~must], each[~kept]
    if chosen.size and gone.size:
        assert chosen.min() >= gone.max()


def test_of_equal_scores_the_newest_stay() -> None:
    must = np.array([True, False, False, False, False])
    assert keep_best(np.array([0.0, 1, 2, 1, 1]), 3, must).tolist() == [1, 0, 1, 0, 1]
    block = np.array([7, 7, 3, 3, 9, 9])
    none = np.zeros(6, np.bool_)
    assert keep_subblocks(np.ones(6), block, 4, none).tolist() == [0, 0, 1, 1, 1, 1]


@st.composite
def subblocks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, subblocks in any order, and what must stay."""
    sizes = draw(st.lists(st.integers(1, 32), min_size=1, max_size=12))
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = seed.permutation(1000)[: len(sizes)] * 2 + 1
    block = seed.permutation(np.repeat(names, sizes)).astype(np.int64)
    each = seed.integers(0, draw(st.sampled_from([1, 3, 1000])) + 1, block.size).astype(np.float64)
    return each, block, seed.random(block.size) < draw(st.sampled_from([0.0, 0.02, 1.0]))


@given(subblocks(), st.integers(0, 400))
def test_subblocks_stay_or_go_whole_and_never_pass_the_budget(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray], budget: int
) -> None:
    each, block, must = drawn
    needed = int(np.isin(block, block[must]).sum())
    if needed > budget:
        with pytest.raises(BudgetError, match=f"{needed} cells of a layer must stay"):
            keep_subblocks(each, block, budget, must)
        return
    kept = keep_subblocks(each, block, budget, must)
    assert kept[must].all() and kept.sum() <= budget
    total = {name: each[block == name].sum() for name in np.unique(block)}
    size = {name: int((block == name).sum()) for name in total}
    held = {name: bool(kept[block == name].all()) for name in total}
    assert all(held[name] == kept[block == name].any() for name in total)
    free = [name for name in total if held[name] and not must[block == name].any()]
    for name in total:
        if not held[name]:
            assert size[name] > budget - kept.sum()
            # What went would not have fitted beside those with larger sums.
            better = sum(size[other] for other in free if total[other] >= total[name])
            assert size[name] > budget - needed - better


def test_without_cells_nothing_is_kept() -> None:
    none = np.zeros(0, np.bool_)
    assert keep_best(np.zeros(0), 3, none).size == 0
    assert keep_subblocks(np.zeros(0), np.zeros(0, np.int64), 3, none).size == 0


def test_a_score_that_is_no_number_is_refused() -> None:
    each, none = np.array([1.0, np.nan]), np.zeros(2, np.bool_)
    for keep in (
        lambda: keep_best(each, 1, none),
        lambda: keep_subblocks(each, np.arange(2), 1, none),
    ):
        with pytest.raises(OmniError, match="cell 1 of 2 has no score"):
            keep()


def test_more_that_must_stay_than_the_budget_is_refused() -> None:
    with pytest.raises(BudgetError, match="3 cells of a layer must stay, and its budget is 2"):
        keep_best(np.zeros(4), 2, np.array([True, True, True, False]))


def test_the_proxy_is_the_mean_of_the_chosen_turned_once() -> None:
    draw = np.random.default_rng(2)
    queries = draw.standard_normal((12, 3, 16)).astype(np.float32)
    cos, sin = rotary_tables(np.array([[40], [7], [9]], np.int32), 16, 1e4, (2, 3, 3))
    chosen = newest(12, 5)
    assert np.flatnonzero(chosen).tolist() == [7, 8, 9, 10, 11]
    found = proxy_query(queries, chosen, cos, sin)
    assert found.shape == (3, 16)
    expected = rotate(queries[7:].astype(np.float64), cos, sin).mean(0)
    assert np.allclose(found, expected)


def test_the_tokens_that_stand_for_a_question() -> None:
    assert newest(3, 5).all()
    role = np.array(
        [
            *(Role.PREFIX, Role.PREFIX, Role.BRACKET, Role.CONTENT, Role.DELIMITER),
            *(Role.PROMPT, Role.GENERATED, Role.CONTENT),
        ],
        np.int8,
    )
    assert np.flatnonzero(last_text(role, 3)).tolist() == [1, 5, 6]
    assert np.flatnonzero(last_text(role)).tolist() == [0, 1, 5, 6]


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_each_layer_attends_as_if_it_had_never_had_what_it_dropped(
    cells: int, layers: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    q = draw.standard_normal((layers, 3, 4, 8))
    k, v = draw.standard_normal((2, layers, cells, 2, 8))
    order = draw.permutation(cells).astype(np.int64)
    latest = np.array([0, cells // 2, cells], np.int64)
    bias = draw.standard_normal(cells)
    kept = draw.random((layers, cells)) < 0.5
    k[~kept] = v[~kept] = np.nan
    found = masked_layers(q, k, v, latest, order, bias, kept, 0.3)
    assert np.isfinite(found).all()
    for layer in range(layers):
        for row in range(3):
            for head in range(4):
                at = np.flatnonzero(kept[layer] & (order <= latest[row]))
                if not at.size:
                    assert (found[layer, row, head] == 0).all()
                    continue
                each = k[layer, at, head // 2] @ q[layer, row, head] * 0.3 + bias[at]
                weights = np.exp(each - each.max())
                expected = weights @ v[layer, at, head // 2] / weights.sum()
                assert np.allclose(found[layer, row, head], expected, atol=1e-12)
