"""Where the patches of a video grid lie: window order, window lengths and rotary angles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.model_config import VisionConfig
from omni_core.units import Int32


@dataclass(frozen=True)
class Geometry:
    """A grid's patches in window order.

    Attributes:
        order: ``int32[merged]``, merged patches window by window; a merged patch is ``merge ** 2``
            patches that follow each other.
        windows: patches in each window, empty ones left out.
        slices: patches in each temporal slice.
        cos, sin: ``float32[patches, head_dim / 2]``, in window order.
    """

    order: Int32
    windows: tuple[int, ...]
    slices: tuple[int, ...]
    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]


def geometry(grid: tuple[int, int, int], config: VisionConfig) -> Geometry:
    """Windows of ``window`` pixels a side, each in one temporal slice (Qwen2.5-VL, 2.1.1).

    Args:
        grid: ``(t, h, w)`` in patches; ``h`` and ``w`` are multiples of ``merge``.
    """
    merge = config.merge
    slices, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    side = config.window // merge // config.patch
    t, y, x = (axis.reshape(-1) for axis in np.indices((slices, rows, columns)))
    across, down = -(-columns // side), -(-rows // side)
    window = (t * down + y // side) * across + x // side
    order = np.argsort(window, kind="stable").astype(np.int32)
    inside = np.arange(merge)
    patch_y = (y[order, None, None] * merge + inside[:, None]).repeat(merge, axis=2)
    patch_x = (x[order, None, None] * merge + inside[None, :]).repeat(merge, axis=1)
    angles = _angles(patch_y.reshape(-1), patch_x.reshape(-1), config)
    return Geometry(
        order,
        tuple((np.bincount(window) * merge**2).tolist()),
        (grid[1] * grid[2],) * slices,
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
    )


def _angles(
    y: npt.NDArray[np.int64], x: npt.NDArray[np.int64], config: VisionConfig
) -> npt.NDArray[np.float64]:
    """Axial rotary angles: the first half of the frequencies turns by row, the second by column."""
    quarter = config.hidden // config.heads // 4
    frequencies = config.rope_theta ** (-np.arange(quarter, dtype=np.float64) / quarter)
    return np.concatenate([y[:, None] * frequencies, x[:, None] * frequencies], axis=1)
