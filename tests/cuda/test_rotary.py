"""Rotary tables made on the device: those of the core's float64, rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omni_core.model_config import TextConfig
from omni_core.reference.rotary import rotary_tables

rotary = pytest.importorskip("omni_cuda.rotary")


@pytest.mark.parametrize("count", [1, 33])
@pytest.mark.parametrize(
    ("head_dim", "theta", "sections"),
    [(128, 1e6, (16, 24, 24)), (24, 1e4, (2, 5, 5)), (64, 1e6, ())],
    ids=["128", "24", "no sections"],
)
def test_tables_equal_the_cores(
    device: str, head_dim: int, theta: float, sections: tuple[int, ...], count: int
) -> None:
    text = TextConfig(100, 64, 64, 1, 2, 2, head_dim, 1e-6, theta, sections, 32768, False)
    draw = np.random.default_rng(head_dim)
    positions = draw.integers(0, 1_000_000, (3, count)).astype(np.int32)
    positions[:, 0] = 1_000_000, 0, 999_999
    shifts = np.array([0, 8192, 70_000, -13], np.int32)
    made = rotary.DeviceRotary(text, torch.device(device)).tables(
        *(torch.from_numpy(each).to(device) for each in (positions, shifts))
    )
    for table in made:
        assert table.shape == (5, count, head_dim // 2)
        assert table.dtype is torch.float32
    for place, shift in enumerate([0, *shifts.tolist()]):
        expected = rotary_tables(positions + np.int32(shift), head_dim, theta, sections)
        for found, table in zip(made, expected, strict=True):
            np.testing.assert_array_max_ulp(found[place].cpu().numpy(), table, maxulp=1)
