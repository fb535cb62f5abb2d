"""Likeness of embeddings in bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.aggregation.likeness import GRID
from omni_core.aggregation.memory import HostMemory, means
from omni_core.backend import MergePlan

mx = pytest.importorskip("mlx.core")
aggregation = pytest.importorskip("omni_mlx.aggregation")
devices = pytest.importorskip("omni_mlx.devices")


def _memory(hidden: int):
    return aggregation.DeviceMemory(hidden, devices.choose_device("cpu"), mx.bfloat16)


@pytest.mark.parametrize("tokens", [2, 33, 300])
def test_sixteen_bits_are_compared_in_thirty_two(tokens: int) -> None:
    hidden, draw = 96, np.random.default_rng(tokens)
    things = draw.standard_normal((max(1, tokens // 4), hidden))
    rows = things[draw.integers(0, len(things), tokens)]
    rows += 0.3 * draw.standard_normal(rows.shape)
    given = mx.array(rows[None]).astype(mx.bfloat16)
    exact = np.array(given.astype(mx.float32))
    memory, host = _memory(hidden), HostMemory(hidden)
    at = np.arange(tokens, dtype=np.int32)
    plan = MergePlan.of(at, at // 2)
    if tokens > 2:
        found, wanted = memory.nearest(given, plan, at[::2]), host.nearest(exact, plan, at[::2])
        # Where rounding turns a step of the grid, another may be the best by that step.
        assert (found[0] == wanted[0]).mean() > 0.95
        assert np.abs(found[1] - wanted[1]).max() <= 1
    slots = at[: len(plan)]
    memory.keep(given, plan, slots)
    expected = mx.array(means(exact[0], plan)).astype(mx.bfloat16)
    np.testing.assert_array_equal(memory.read(slots), np.array(expected.view(mx.uint16)))
    host.write(slots, np.array(expected.astype(mx.float32)))
    asked = (at, at, at // 2)
    assert np.abs(memory.compare(given, *asked)[1] - host.compare(exact, *asked)[1]).max() <= 1
    merged = aggregation.merge(given, plan)
    assert merged.dtype == mx.bfloat16 and bool(mx.array_equal(merged[0], expected))
    other = _memory(hidden)
    other.write(slots, memory.read(slots))
    np.testing.assert_array_equal(other.read(slots), memory.read(slots))


def test_huge_tiny_zero_and_no_numbers() -> None:
    rows = [[1e30, 1e30], [1e-30, 1e-30], [0, 0], [float("nan"), 1], [1, float("inf")]]
    memory, at = _memory(2), np.arange(5, dtype=np.int32)
    given = mx.array([rows]).astype(mx.bfloat16)
    memory.keep(given, MergePlan.of(at[:3], at[:3]), at[:3])
    valid, level = memory.compare(given, at, at, np.zeros(5, np.int32))
    assert valid.tolist() == [True, True, True, False, False]
    assert level.tolist() == [GRID, GRID, 0, 0, 0]
