"""Which tokens are left out, which are merged, and what the log-count bias makes good."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.aggregation.intraframe import merge_frame, merged, mutual
from omni_core.aggregation.likeness import (
    GRID,
    MOST_TOKENS,
    above,
    keys,
    level_of,
    levels,
    unit_rows,
)
from omni_core.aggregation.memory import HostMemory, means
from omni_core.aggregation.places import Places, free_slots
from omni_core.aggregation.rule import Aggregation
from omni_core.backend import MergePlan
from omni_core.errors import OmniError
from omni_core.reference.attention import masked_attention

RULE = Aggregation()
NONE = np.zeros(0, np.int32)


def frame_groups(rows: np.ndarray, rule: Aggregation = RULE) -> np.ndarray:
    """The groups that a frame's rows ``[T, hidden]`` are merged into."""
    memory, at = HostMemory(rows.shape[1]), np.arange(len(rows), dtype=np.int32)
    return merge_frame(at, at, lambda plan, ids: memory.nearest(rows[None], plan, ids), rule)[0]


def clustered(draw: np.random.Generator, tokens: int, things: int, noise: float) -> np.ndarray:
    centres = draw.normal(size=(things, 16))
    return centres[draw.integers(0, things, tokens)] + noise * draw.normal(size=(tokens, 16))


@given(
    st.integers(1, 70),
    st.integers(0, 30),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
    st.floats(0.01, 100.0),
)
def test_merged_equal_cells_with_a_log_count_bias_give_the_same_attention(
    equal: int, others: int, queries: int, seed: int, size: float
) -> None:
    draw = np.random.default_rng(seed)
    q = size * draw.normal(size=(queries, 4, 8))
    rest_k, rest_v = draw.normal(size=(2, others, 2, 8))
    k, v = draw.normal(size=(2, 1, 2, 8))
    order = np.zeros(queries, np.int64)

    def attend(times: int, bias: float) -> np.ndarray:
        kept_k = np.concatenate([rest_k, np.repeat(k, times, axis=0)])
        kept_v = np.concatenate([rest_v, np.repeat(v, times, axis=0)])
        biases = np.concatenate([np.zeros(others), np.full(times, bias)])
        seen = np.zeros(len(kept_k), np.int64)
        return masked_attention(q, kept_k, kept_v, order, seen, biases, 8**-0.5)

    np.testing.assert_allclose(attend(1, np.log(equal)), attend(equal, 0.0), rtol=1e-5, atol=1e-5)


@given(
    st.integers(0, 40),
    st.integers(1, 6),
    st.floats(0, 0.6),
    st.integers(0, 2**32 - 1),
    st.integers(0, 5),
)
def test_groups_part_the_tokens_and_are_numbered_by_their_first(
    tokens: int, things: int, noise: float, seed: int, rounds: int
) -> None:
    rows = clustered(np.random.default_rng(seed), tokens, things, noise)
    groups = frame_groups(rows, Aggregation(rounds=rounds))
    assert groups.shape == (tokens,)
    found, first, counts = np.unique(groups, return_index=True, return_counts=True)
    assert found.tolist() == list(range(found.size)) and (np.diff(first) > 0).all()
    assert counts.sum() == tokens and counts.max(initial=0) <= 2**rounds


@given(st.integers(2, 40), st.integers(1, 5), st.floats(0, 0.5), st.integers(0, 2**32 - 1))
def test_what_was_merged_until_no_pair_is_left_merges_no_more(
    tokens: int, things: int, noise: float, seed: int
) -> None:
    rows = clustered(np.random.default_rng(seed), tokens, things, noise)
    rule = Aggregation(rounds=8)
    groups = frame_groups(rows, rule)
    # 40 tokens can take more rounds than eight, if each merges only a pair.
    for _ in range(5):
        again = frame_groups(means(rows, MergePlan.of(np.arange(tokens), groups)), rule)
        groups = again[groups]
    left = means(rows, MergePlan.of(np.arange(tokens), groups))
    assert frame_groups(left, rule).tolist() == list(range(len(left)))


@given(st.integers(2, 30), st.integers(1, 5), st.floats(0, 0.5), st.integers(0, 2**32 - 1))
def test_pairs_merged_by_a_weighted_mean_are_the_mean_of_their_tokens(
    tokens: int, things: int, noise: float, seed: int
) -> None:
    """The definition step by step, against groups alone."""
    rows = clustered(np.random.default_rng(seed), tokens, things, noise)
    state, counts = rows.copy(), np.ones(tokens)
    members = [[token] for token in range(tokens)]
    for _ in range(RULE.rounds):
        units = unit_rows(state)
        key = keys(levels(units @ units.T), np.asarray([m[0] for m in members], np.int32))
        np.fill_diagonal(key, np.iinfo(np.int32).min)
        best = key.argmax(axis=1)
        pairs = [
            (i, j)
            for i, j in enumerate(best.tolist())
            if best[j] == i and i < j and level_of(key[i, j]) > RULE.intra * GRID
        ]
        if len(state) < 2 or not pairs:
            break
        for i, j in pairs:
            state[i] = (counts[i] * state[i] + counts[j] * state[j]) / (counts[i] + counts[j])
            counts[i] += counts[j]
            members[i] = sorted(members[i] + members[j])
        gone = {j for _, j in pairs}
        keep = [i for i in range(len(state)) if i not in gone]
        state, counts = state[keep], counts[keep]
        members = [members[i] for i in keep]
    groups = frame_groups(rows)
    plan = MergePlan.of(np.arange(tokens, dtype=np.int32), groups)
    assert [np.flatnonzero(groups == g).tolist() for g in range(len(plan))] == members
    np.testing.assert_allclose(means(rows, plan), state, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(plan.counts, counts)


def test_equal_tokens_pair_off_by_twos_whatever_their_number() -> None:
    for tokens in (2, 3, 16, 31, 64):
        row = np.random.default_rng(tokens).normal(size=(1, 16))
        rows = np.repeat(row, tokens, axis=0)
        for rounds in range(1, 5):
            groups = frame_groups(rows, Aggregation(rounds=rounds))
            np.testing.assert_array_equal(groups, np.arange(tokens) // 2**rounds)


def test_tokens_that_are_all_different_stay() -> None:
    rows = np.eye(16)
    assert frame_groups(rows).tolist() == list(range(16))
    assert frame_groups(rows[:1]).tolist() == [0] and frame_groups(rows[:0]).tolist() == []


def test_a_threshold_is_to_be_passed_and_not_met() -> None:
    level = np.asarray([GRID // 2, GRID // 2 + 1], np.int32)
    assert above(level, 0.5).tolist() == [False, True]
    assert not above(np.asarray([GRID], np.int32), 1.0).any()


@given(st.lists(st.integers(0, MOST_TOKENS - 1), min_size=2, max_size=9, unique=True), st.data())
def test_keys_order_by_likeness_then_by_id_and_give_the_likeness_back(
    ids: list[int], data: st.DataObject
) -> None:
    near = st.integers(-GRID, GRID)
    level = np.zeros((len(ids), len(ids)), np.int32)
    for row in range(len(ids)):
        for column in range(row):
            level[row, column] = level[column, row] = data.draw(near)
    key = keys(level, np.asarray(ids, np.int32))
    apart = ~np.eye(len(ids), dtype=bool)
    np.testing.assert_array_equal(level_of(key)[apart], level[apart])
    np.testing.assert_array_equal(key, key.T)
    for row in range(len(ids)):
        others = np.flatnonzero(apart[row])
        assert np.unique(key[row, others]).size == others.size
        ranked = others[np.argsort(key[row, others])]
        assert (np.diff(level[row, ranked]) >= 0).all()


def test_the_best_pair_of_all_is_always_merged() -> None:
    partner = np.asarray([1, 0, 1, 4, 3], np.int32)
    level = np.full(5, GRID, np.int32)
    assert mutual(partner, level, RULE).tolist() == [[0, 1], [3, 4]]
    own = np.arange(5, dtype=np.int32)
    groups, first = merged(own, own, np.asarray([[0, 1], [3, 4]]))
    assert groups.tolist() == [0, 0, 1, 2, 2] and first.tolist() == [0, 2, 3]
    groups, first = merged(groups, first, np.asarray([[0, 2]]))
    assert groups.tolist() == [0, 0, 1, 0, 0] and first.tolist() == [0, 2]


def test_likeness_of_huge_tiny_and_zero_rows() -> None:
    rows = np.asarray([[1e30, 1e30], [1e-30, 1e-30], [0, 0]], np.float32)
    units = unit_rows(rows)
    np.testing.assert_allclose(units[:2] @ units[0], 1.0)
    assert (units[2] == 0).all()


def test_rows_that_are_no_numbers_are_told_and_like_nothing() -> None:
    memory = HostMemory(2)
    rows = np.asarray([[[1, 2], [np.nan, 2], [1, np.inf], [2, 4]]], np.float32)
    at = np.arange(4, dtype=np.int32)
    memory.keep(rows, MergePlan.of(at[:1], at[:1]), at[2:3])
    valid, level = memory.compare(rows, at, at, np.full(4, 2, np.int32))
    assert valid.tolist() == [True, False, False, True]
    assert level.tolist() == [GRID, 0, 0, GRID]


def test_a_memory_takes_what_it_is_given_and_gives_it_back() -> None:
    memory = HostMemory(3)
    assert memory.bytes == 0
    rows = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    plan = MergePlan.of(np.asarray([0, 2, 3], np.int32), np.asarray([0, 1, 0], np.int32))
    memory.keep(rows, plan, np.asarray([4, 1], np.int32))
    assert memory.bytes == 5 * 3 * 4
    np.testing.assert_array_equal(
        memory.read(np.asarray([1, 4], np.int32)), [rows[0, 2], (rows[0, 0] + rows[0, 3]) / 2]
    )
    memory.write(np.asarray([0], np.int32), rows[0, :1])
    np.testing.assert_array_equal(memory.read(np.asarray([0], np.int32)), rows[0, :1])
    assert memory.bytes == 5 * 3 * 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inter", 0.0),
        ("inter", 1.1),
        ("intra", -1),
        ("intra", float("nan")),
        ("rounds", 9),
        ("least", -1),
    ],
)
def test_parameters_that_are_none_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(OmniError, match=f"`{field}` is {value}"):
        Aggregation(**{field: value})


def test_free_slots_are_the_lowest_that_are_not_taken() -> None:
    assert free_slots(NONE, 3).tolist() == [0, 1, 2]
    assert free_slots(np.asarray([0, 2, 9], np.int32), 3).tolist() == [1, 3, 4]


def test_a_place_has_one_entry() -> None:
    places = Places().of((2, 2), 4)
    assert places.known.tolist() == []
    two, one = np.asarray([1, 3], np.int32), np.asarray([0, 0], np.int32)
    places = places.renewed(two, np.asarray([7, 7]), one)
    places = places.renewed(
        np.asarray([0, 3], np.int32), np.asarray([8, 9]), np.asarray([1, 2], np.int32)
    )
    assert places.known.tolist() == [0, 1, 3] and places.slots.tolist() == [0, 1, 2]
    assert places.order.tolist() == [8, 7, -1, 9] and places.slot.tolist() == [1, 0, -1, 2]
    assert places.moved(8, np.asarray([1, 0], np.int32)).order.tolist() == [9, 7, -1, 8]
    assert places.of((2, 2), 4) is places
    for size, count in (((4, 1), 4), ((2, 2), 1)):
        assert places.of(size, count).order.tolist() == [-1] * count
