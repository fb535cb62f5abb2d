"""Layer budgets: shares as the paper blends them, and whole cells within every bound."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from omni_core.errors import BackendError, BudgetError, OmniError
from omni_core.layer_budgets import (
    Blend,
    GradientNorms,
    allocate,
    attention_entropy,
    dynamic_utility,
    feature_magnitude,
    importance,
)

shares = st.floats(0, 1e6) | st.floats(0, 1e-300) | st.sampled_from([0.0, 1.0])


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[float], list[int], list[int], int]:
    """Shares, least, most, and a total that fits."""
    count = draw(st.integers(1, 40))
    low = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    room = draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    high = [least + more for least, more in zip(low, room, strict=True)]
    total = draw(st.integers(sum(low), sum(high)))
    return draw(st.lists(shares, min_size=count, max_size=count)), low, high, total


@given(layers())
def test_cells_sum_to_the_total_and_keep_within_bounds(
    drawn: tuple[list[float], list[int], list[int], int],
) -> None:
    weights, low, high, total = drawn
    cells = allocate(weights, total, low, high)
    assert cells.dtype == np.int64 and cells.sum() == total
    assert (low <= cells).all() and (cells <= high).all()


@given(layers())
def test_layers_within_bounds_are_in_proportion(
    drawn: tuple[list[float], list[int], list[int], int],
) -> None:
    weights, low, high, total = drawn
    cells = allocate(weights, total, low, high).tolist()
    inner = [n for n, c in enumerate(cells) if low[n] + 1 < c < high[n] - 1]
    assume(len(inner) > 1 and any(weights))
    exactly = [Fraction(weight) for weight in weights]
    sum_in, got = sum(exactly[n] for n in inner), sum(cells[n] for n in inner)
    for n in inner:
        exact = got * exactly[n] / sum_in if sum_in else Fraction(got, len(inner))
        assert abs(cells[n] - exact) < 2


@given(layers())
def test_a_larger_share_never_gets_less(
    drawn: tuple[list[float], list[int], list[int], int],
) -> None:
    weights, low, high, total = drawn
    least, most = max(low), max(low) + max(h - g for g, h in zip(low, high, strict=True))
    total = min(max(total, least * len(weights)), most * len(weights))
    cells = allocate(weights, total, least, most)
    by_share = sorted(range(len(weights)), key=lambda n: (-weights[n], n))
    assert (np.diff(cells[by_share]) <= 0).all()


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(0, 10**9))
def test_without_bounds_each_gets_its_quota_rounded_up_or_down(
    weights: list[int], total: int
) -> None:
    assume(any(weights))
    cells = allocate(weights, total, 0, 10**12)
    for weight, got in zip(weights, cells.tolist(), strict=True):
        assert abs(got - Fraction(total * weight, sum(weights))) < 1


def test_ties_go_to_the_first_layers() -> None:
    assert allocate([1, 1, 1, 1], 6, 0, 9).tolist() == [2, 2, 1, 1]
    assert allocate([0, 0, 0], 4, 1, 9).tolist() == [2, 1, 1]


def test_the_sensitive_layer_is_held_to_what_it_can_hold() -> None:
    assert allocate([97, 1, 2], 100, 5, 50).tolist() == [50, 17, 33]
    assert allocate([97, 1, 2], 100, 5, 100).tolist() == [90, 5, 5]


@pytest.mark.parametrize(
    ("weights", "total", "least", "most", "error", "says"),
    [
        ([1, 1], 9, 5, 20, BudgetError, "less than the 10 that they need"),
        ([1, 1], 41, 5, 20, BudgetError, "more than the 40 that they can hold"),
        ([1, 1], 20, 5, 4, BudgetError, "than it can hold"),
        ([1, 1], 20, -1, 40, BudgetError, "fewer than none"),
        ([1, np.nan], 20, 5, 20, OmniError, "finite number"),
        ([1, -1], 20, 5, 20, OmniError, "finite number"),
        ([], 20, 5, 20, OmniError, "finite number"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    weights: list[float], total: int, least: int, most: int, error: type[OmniError], says: str
) -> None:
    with pytest.raises(error, match=says) as told:
        allocate(weights, total, least, most)
    assert "\n" not in str(told.value)


def test_shares_are_the_papers_blend() -> None:
    sensitivity, magnitude, entropy = [6.0, 3.0, 1.0], [2.0, 1.0, 4.0], [0.0, np.e - 1, 0.0]
    utility = dynamic_utility(magnitude, entropy)
    assert np.allclose(utility, [np.log(2), 1, np.log(4)])
    found = importance(sensitivity, utility, Blend(structural=0.7, dynamic=0.1))
    dynamic = utility / utility.sum()
    assert np.allclose(found, 0.2 / 3 + 0.7 * np.array([0.6, 0.3, 0.1]) + 0.1 * dynamic)


def test_the_default_is_mostly_structural_with_a_small_dynamic_part() -> None:
    blend = Blend()
    assert blend.dynamic == 0.025
    assert blend.structural > 0.5 > blend.uniform > blend.dynamic


numbers = st.floats(0, 1e300)


@given(
    st.lists(st.tuples(numbers, st.floats(1e-300, 1e300), numbers), min_size=1, max_size=40),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_shares_sum_to_one_and_none_falls_below_the_uniform_part(
    each: list[tuple[float, float, float]], one: float, other: float
) -> None:
    sensitivity, magnitude, entropy = zip(*each, strict=True)
    blend = Blend(min(one, other), abs(one - other) * (1 - 1e-9))
    found = importance(sensitivity, dynamic_utility(magnitude, entropy), blend)
    assert found.sum() == pytest.approx(1)
    assert (found >= blend.uniform / len(each) * (1 - 1e-9)).all()


@given(
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0, 20)), min_size=1, max_size=40),
    st.sampled_from([0.125, 8.0]),
)
def test_values_that_are_all_scaled_alike_change_nothing(
    each: list[tuple[float, float]], factor: float
) -> None:
    magnitude, entropy = map(np.array, zip(*each, strict=True))
    before = dynamic_utility(magnitude, entropy)
    assert (before >= 0).all()
    assert np.allclose(dynamic_utility(magnitude * factor, entropy), before, atol=1e-12)


def test_what_tells_nothing_counts_as_uniform() -> None:
    for blend in (Blend(), Blend(1.0, 0.0), Blend(0.0, 1.0)):
        assert np.allclose(importance(np.zeros(5), np.zeros(5), blend), 0.2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Blend(0.8, 0.3), "at most 1"),
        (lambda: Blend(-0.1, 0.3), "0 or above"),
        (lambda: Blend(np.nan, 0.3), "0 or above"),
        (lambda: dynamic_utility([1, 0], [1, 1]), "layer 1 has feature magnitude 0"),
        (lambda: dynamic_utility([1, np.inf], [1, 1]), "layer 1 has feature magnitude inf"),
        (lambda: dynamic_utility([1, 1], [-1, 1]), "layer 0 has attention entropy -1"),
        (lambda: importance([1, np.nan], [1, 1], Blend()), "layer 1 has sensitivity nan"),
        (lambda: importance([1, 1, 1], [1, 1], Blend()), "of 3 layers"),
        (lambda: importance([], [], Blend()), "a number for each layer"),
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong: object, says: str) -> None:
    with pytest.raises(OmniError, match=says) as told:
        wrong()  # type: ignore[operator]
    assert "\n" not in str(told.value)


def test_weights_that_sum_to_one_but_for_rounding_are_taken() -> None:
    assert Blend(0.7, 0.2 + 0.1).uniform == 0


def test_entropy_is_that_of_the_queries_that_see_something() -> None:
    even = np.full((2, 3, 8), 1 / 8)
    assert attention_entropy(even) == pytest.approx(np.log(8))
    blind = even.copy()
    blind[:, 1] = 0
    assert attention_entropy(blind) == pytest.approx(np.log(8))
    sharp = np.zeros((2, 3, 8))
    sharp[..., 5] = 1 + 1e-12
    assert attention_entropy(sharp) == 0
    assert attention_entropy(np.zeros((2, 3, 0))) == 0
    mixed = np.concatenate([even, sharp])
    assert attention_entropy(mixed.astype(np.float32)) == pytest.approx(np.log(8) / 2, rel=1e-6)


def test_magnitude_is_the_mean_norm() -> None:
    assert feature_magnitude(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)) == 3


def test_gradient_norms_are_averaged_over_samples() -> None:
    norms = GradientNorms()
    with pytest.raises(OmniError, match="no sample"):
        _ = norms.sensitivity
    norms.add([3.0, 0.0], [4.0, 0.0])
    norms.add([0.0, 0.0], [15.0, 0.0])
    assert len(norms) == 2
    assert norms.keys.tolist() == [1.5, 0] and norms.values.tolist() == [9.5, 0]
    assert norms.sensitivity.tolist() == [10, 0]
    assert norms.spread.tolist() == [0.5, 0]
    with pytest.raises(BackendError, match="gradient at layer 1 is not finite"):
        norms.add([1.0, 1.0], [1.0, np.nan])
    assert len(norms) == 2
