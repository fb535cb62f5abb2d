"""Whether this GPU runs the kernels as they are meant, found out before a stream depends on them.

They write to memory that MLX takes for an input. No Apple GPU has been at hand to see that through,
so each one is asked: a few tokens are stored, attended and moved, by kernels and in MLX's own
operations, on the model's own shape.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np

from omni_core.backend import PAGE, ArenaLayout, MovePlan, StepPlan, TableDelta
from omni_core.model_config import TextConfig
from omni_core.paging.mirror import TableMirror, pack_occupancy
from omni_core.units import Int32
from omni_mlx.arena import Arena
from omni_mlx.paged import Kernels, PagedAttention, Run
from omni_mlx.step import StepAttention

_PAGES = 3
_STEPS = (70, 1, 3, 1)
"""New tokens of each step; after the second some move."""
_MOVED = (np.arange(4, 9), np.arange(2 * PAGE + 4, 2 * PAGE + 9))
_MOST = {mx.float32: 1e-3, mx.float16: 1e-2, mx.bfloat16: 5e-2}
"""Most that results may differ, as ``|kernels - operations| / |operations|``."""


def fault(text: TextConfig, dtype: mx.Dtype, cores: int, run: Run) -> str | None:
    """What is wrong with the kernels on the default device, in a few words; None if nothing is.

    Args:
        text: of the model.
        dtype: of its numbers.
        cores: of the GPU.
        run: carries out launches.
    """
    try:
        worst = _apart(replace(text, layers=1), dtype, cores, run)
    except (RuntimeError, ValueError) as error:
        return " ".join(str(error).split())[:200]
    # NaN is no less wrong.
    return None if worst <= _MOST[dtype] else f"they are {worst:.2g} off"


def _apart(text: TextConfig, dtype: mx.Dtype, cores: int, run: Run) -> float:
    layout = ArenaLayout(_PAGES, 1, 1, text.kv_heads, text.head_dim)
    kernels = Kernels(text, layout, cores, run)
    arenas = Arena(layout, dtype), Arena(layout, dtype)
    mirror = TableMirror(layout)
    live = np.zeros((_PAGES, PAGE), np.bool_)
    key, at, worst = mx.random.key(0), 0, 0.0
    for number, count in enumerate(_STEPS):
        plan = _step(live, at, count)
        given = []
        for heads in (text.q_heads, text.kv_heads, text.kv_heads):
            key, part = mx.random.split(key)
            given.append(mx.random.normal((1, heads, count, text.head_dim), dtype, key=part))
        paged = PagedAttention(plan, mirror, arenas[0], kernels)
        spelled = StepAttention(plan, mirror.preview(plan), arenas[1], text, mx.float32)
        found, expected = (attention(0, 0, *given) for attention in (paged, spelled))
        for arena, out, pending in (
            (arenas[0], found, paged.pending()),
            (arenas[1], expected, spelled.pending()),
        ):
            arena.settle(out, *pending)
        mirror.commit(plan)
        off, size = (mx.linalg.norm(x.astype(mx.float32)) for x in (found - expected, expected))
        worst = float(np.maximum(worst, (off / size).item()))
        at += count
        if number == 1:
            move = _move(live)
            kernels.move(arenas[0], move)
            arenas[1].copy(move.source, move.target)
            mirror.commit(move)
    return worst


def _step(live: np.ndarray, at: int, count: int) -> StepPlan:
    """``count`` tokens behind ``at``, in cells of the same numbers."""
    cells = np.arange(at, at + count, dtype=np.int32)
    live.reshape(-1)[cells] = True
    return StepPlan(
        tokens=np.zeros((1, count), np.int32),
        rows=np.full(count, -1, np.int32),
        positions=np.broadcast_to(cells, (3, count)).copy(),
        order=cells.astype(np.int64),
        counts=np.ones(count, np.int32),
        cells=cells[None],
        shifts=np.zeros((1, 2), np.int32),
        logits=np.zeros(0, np.int32),
        mass=False,
        delta=_delta(live),
    )


def _move(live: np.ndarray) -> MovePlan:
    source, target = (cells.astype(np.int32) for cells in _MOVED)
    live.reshape(-1)[source] = False
    live.reshape(-1)[target] = True
    return MovePlan(source, target, _delta(live))


def _delta(live: np.ndarray) -> TableDelta:
    pages: Int32 = np.arange(_PAGES, dtype=np.int32)
    none = np.zeros(_PAGES, np.int32)
    return TableDelta(pages, none, pack_occupancy(live), none.astype(np.int8), none)
