"""Likeness of embeddings in bfloat16, on every device."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from omni_core.aggregation.likeness import GRID
from omni_core.aggregation.memory import HostMemory, means
from omni_core.backend import MergePlan

torch = pytest.importorskip("torch")
aggregation = pytest.importorskip("omni_cuda.aggregation")


def _memory(device: str, hidden: int):
    place = torch.device(device)
    return aggregation.DeviceMemory(hidden, place, torch.bfloat16, nullcontext)


def _rows(device: str, tokens: int, hidden: int):
    draw = torch.Generator().manual_seed(tokens)
    things = torch.randn(max(1, tokens // 4), hidden, generator=draw)
    rows = things[torch.randint(len(things), (tokens,), generator=draw)]
    rows = rows + 0.3 * torch.randn(rows.shape, generator=draw)
    rows = rows[None].bfloat16()
    return rows.to(device), rows.float().numpy()


@pytest.mark.parametrize("tokens", [2, 33, 300])
def test_sixteen_bits_are_compared_in_thirty_two(device: str, tokens: int) -> None:
    hidden = 96
    given, exact = _rows(device, tokens, hidden)
    memory, host = _memory(device, hidden), HostMemory(hidden)
    at = np.arange(tokens, dtype=np.int32)
    plan = MergePlan.of(at, at // 2)
    found, wanted = memory.nearest(given, plan, at[::2]), host.nearest(exact, plan, at[::2])
    if tokens > 2:
        same = found[0] == wanted[0]
        # Where rounding turns a step of the grid, another may be the best by that step.
        assert same.mean() > 0.95 and np.abs(found[1] - wanted[1]).max() <= 1
    memory.keep(given, plan, at[: len(plan)])
    kept = torch.from_numpy(memory.read(at[: len(plan)])).view(torch.bfloat16)
    expected = torch.from_numpy(means(exact[0], plan)).bfloat16()
    assert torch.equal(kept, expected)
    host.write(at[: len(plan)], expected.float().numpy())
    asked = (at, at, at // 2)
    assert np.abs(memory.compare(given, *asked)[1] - host.compare(exact, *asked)[1]).max() <= 1
    merged = aggregation.merge(given, plan)
    assert merged.dtype is torch.bfloat16 and torch.equal(merged[0].cpu(), expected)
    # What is written is what was read, to the bit.
    other = _memory(device, hidden)
    other.write(at[: len(plan)], memory.read(at[: len(plan)]))
    np.testing.assert_array_equal(other.read(at[: len(plan)]), memory.read(at[: len(plan)]))


def test_huge_tiny_zero_and_no_numbers(device: str) -> None:
    rows = torch.tensor([[[1e30, 1e30], [1e-30, 1e-30], [0, 0], [torch.nan, 1], [1, torch.inf]]])
    memory = _memory(device, 2)
    given, at = rows.to(device).bfloat16(), np.arange(5, dtype=np.int32)
    memory.keep(given, MergePlan.of(at[:3], at[:3]), at[:3])
    valid, level = memory.compare(given, at, at, np.zeros(5, np.int32))
    assert valid.tolist() == [True, True, True, False, False]
    assert level.tolist() == [GRID, GRID, 0, 0, 0]
    assert memory.compare(given, at[:1], at[:1], at[2:3])[1].tolist() == [0]
