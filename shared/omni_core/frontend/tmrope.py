"""TMRoPE: rotary positions of one clip's picture and sound, a run of tokens at a time.

Time is counted in steps of the model (25 a second) from the clip's first token, in float32 as
transformers does, so that a run's positions are those it has in the whole clip.
"""

from __future__ import annotations

import numpy as np

from omni_core.units import Int32


def video_positions(
    base: int,
    slot: int,
    grid: tuple[int, int, int],
    merge: int,
    seconds_per_grid: float,
    steps_per_second: float,
) -> Int32:
    """Positions ``int32[3, tokens]`` of a grid whose first patch is the clip's ``slot``-th in time.

    Source: ``get_rope_index`` of transformers' Qwen2.5-Omni; its t, h and w all start at ``base``.
    """
    frames, high, wide = grid[0], grid[1] // merge, grid[2] // merge
    seconds = np.arange(slot, slot + frames).astype(np.float32) * np.float32(seconds_per_grid)
    steps = (seconds * np.float32(steps_per_second)).astype(np.int32)
    rows = np.empty((3, frames, high, wide), np.int32)
    rows[0] = steps[:, None, None]
    rows[1] = np.arange(high)[:, None]
    rows[2] = np.arange(wide)
    return rows.reshape(3, -1) + np.int32(base)


def line_positions(first: int, count: int) -> Int32:
    """``count`` positions in a row, the same by time, height and width: ``int32[3, count]``."""
    line = np.arange(first, first + count, dtype=np.int32)
    return np.broadcast_to(line, (3, count)).copy()
