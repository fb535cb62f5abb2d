"""Whether this GPU runs the kernels as they are meant, found out before a stream depends on them.

They write to memory that MLX takes for an input. No Apple GPU has been at hand to see that through,
so each one is asked: a few tokens are stored, attended and moved, by kernels and in MLX's own
operations, on the model's own shape.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np

from metal_kernels.cutting import Gpu
from omni_core.backend import PAGE, ArenaLayout, MovePlan, StepPlan, TableDelta
from omni_core.model_config import TextConfig
from omni_core.paging.mirror import TableMirror, pack_occupancy
from omni_core.units import Int32
from omni_mlx.arena import Arena
from omni_mlx.paged import Kernels, PagedAttention, Run
from omni_mlx.step import StepAttention

_PAGES = 3
_STEPS = (70, 1, 3, 1, 9)
"""New tokens of each step."""
_FAR = 2 * PAGE
_MOVES = {
    1: (np.arange(4, 9), np.arange(_FAR + 4, _FAR + 9)),
    3: (np.arange(_FAR + 4, _FAR + 9), np.arange(_FAR + 5, _FAR + 10)),
}
"""What moves after which step: into the last page, which is of another frame, and over itself."""
_MOST = {mx.float32: 5e-3, mx.float16: 5e-3, mx.bfloat16: 2e-2}
"""Most that results may differ, as ``|kernels - operations| / |operations|``; float32 as TF32."""


def fault(text: TextConfig, dtype: mx.Dtype, gpu: Gpu, run: Run) -> str | None:
    """What is wrong with the kernels on the default device, in a few words; None if nothing is.

    Args:
        text: of the model.
        dtype: of its numbers.
        gpu: that runs them.
        run: carries out launches.
    """
    try:
        # One core for each program, and all: the kernels that merge, and those that need not.
        layer = replace(text, layers=1)
        worst = max(_apart(layer, dtype, each, run) for each in {Gpu(1, 1, gpu.tall), gpu})
    except Exception as error:  # Whatever it is, MLX's operations are there.
        return " ".join(str(error).split())[:200] or type(error).__name__
    # Infinite where there was NaN.
    return None if worst <= _MOST[dtype] else f"they are {worst:.2g} off"


def _apart(text: TextConfig, dtype: mx.Dtype, gpu: Gpu, run: Run) -> float:
    layout = ArenaLayout(_PAGES, 1, 1, text.kv_heads, text.head_dim)
    kernels = Kernels(text, layout, gpu, run)
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
        found, expected = paged(0, 0, *given), spelled(0, 0, *given)
        arenas[0].settle(found, *paged.pending())
        arenas[1].settle(expected, *spelled.pending())
        mirror.commit(plan)
        worst = max(worst, _off(found, expected), _off(paged.mass[0], spelled.mass[0]))
        at += count
        if number in _MOVES:
            move = _move(live, *_MOVES[number])
            kernels.move(arenas[0], move)
            arenas[1].copy(move.source, move.target)
            mirror.commit(move)
    return worst


def _off(found: mx.array, expected: mx.array) -> float:
    found, expected = (x.astype(mx.float32) for x in (found, expected))
    off = float((mx.linalg.norm(found - expected) / mx.linalg.norm(expected)).item())
    return off if np.isfinite(off) else float("inf")


def _step(live: np.ndarray, at: int, count: int) -> StepPlan:
    """``count`` tokens behind ``at``, in cells of the same numbers, some merged from several."""
    cells = np.arange(at, at + count, dtype=np.int32)
    live.reshape(-1)[cells] = True
    return StepPlan(
        tokens=np.zeros((1, count), np.int32),
        rows=np.full(count, -1, np.int32),
        positions=np.broadcast_to(cells, (3, count)).copy(),
        order=cells.astype(np.int64),
        counts=1 + cells % 3 * (at > 0),
        cells=cells[None],
        shifts=np.asarray([[0, 0], [1, 5]], np.int32),
        logits=np.zeros(0, np.int32),
        mass=True,
        delta=_delta(live),
    )


def _move(live: np.ndarray, source: np.ndarray, target: np.ndarray) -> MovePlan:
    live.reshape(-1)[source] = False
    live.reshape(-1)[target] = True
    return MovePlan(source.astype(np.int32), target.astype(np.int32), _delta(live))


def _delta(live: np.ndarray) -> TableDelta:
    pages: Int32 = np.arange(_PAGES, dtype=np.int32)
    none, frame = np.zeros(_PAGES, np.int32), pages // (_PAGES - 1)
    return TableDelta(pages, none, pack_occupancy(live), none.astype(np.int8), frame)
