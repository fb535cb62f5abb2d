"""A stream in which everything happens: frames, merged tokens, evictions, moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.backend import PAGE, StepPlan
from omni_core.units import EMBEDDED
from tests.parity import tiny
from tests.parity.oracle import Tokens
from tests.parity.planner import Planner

SHAPE = tiny.Shape(40, 4, 2, 24, (2, 5, 5), layers=2)
ROWS = 16


def step(planner: Planner, tokens: Tokens, start: int, stop: int, **how: Any) -> StepPlan:
    part = slice(start, stop)
    ids, rows, places = tokens.ids[None, part], tokens.rows[part], tokens.positions[:, part]
    return planner.step(ids, rows, places, **how)


def wander(pair: Any, planner: Planner, sizes: list[list[int]], streams: int, seed: int) -> int:
    """Frames come and go; after each step tokens die and others move. Gives how many moved."""
    draw = np.random.default_rng(seed)
    numbers = draw.standard_normal((streams, ROWS, SHAPE.hidden)).astype(np.float32)
    moved = 0
    for frame, lengths in enumerate(sizes):
        # Those far away are read as if they were one distance off.
        shifts = {old: min(50 * (frame - old), 200) for old in range(frame)}
        for turn, size in enumerate(lengths):
            rows = np.full(size, -1, np.int32)
            if size > 2:
                rows[1:] = draw.permutation(ROWS)[: size - 1]
            ids = draw.integers(0, tiny.VOCAB, (streams, size)).astype(np.int32)
            ids[:, rows >= 0] = EMBEDDED
            line = 10 * turn + np.arange(size)
            plan = planner.step(
                ids,
                rows,
                (line + draw.integers(0, 4, (3, 1))).astype(np.int32),
                logits=[[size - 1], range(size), []][(turn + frame) % 3],
                counts=draw.integers(1, 5, size).astype(np.int32) if frame > 1 else None,
                frame=frame,
                shifts=shifts,
                mass=(turn + frame) % 3 != 1,
            )
            pair.forward(plan, numbers)
            for group in range(planner.groups):
                moved += _thin_and_move(pair, planner, group, draw, frame)
    return moved


def _thin_and_move(
    pair: Any, planner: Planner, group: int, draw: np.random.Generator, frame: int
) -> int:
    where = planner.where[group]
    frames = {rank: int(planner.frame[cell // PAGE]) for rank, cell in where.items()}
    # Frame 1 goes whole, and its page to another, in one group before the other; of the others a
    # token stays.
    gone = [rank for rank, of in frames.items() if of == 1 and frame > 2 + group]
    first = {of: rank for rank, of in reversed(frames.items())}
    loose = [rank for rank in where if rank not in gone and rank not in first.values()]
    planner.evict([*gone, *draw.permutation(loose)[: len(loose) // 3].tolist()], group)
    here = [rank for rank in where if frames[rank] == frame]
    page = where[here[-1]] // PAGE
    free = [cell for cell in planner.free[group] if cell // PAGE == page]
    targets = [where[rank] for rank in here]
    if len(here) > 1:
        pair.move(planner.move(dict(zip(here, targets[1:] + targets[:1], strict=True)), group))
    if free:
        pair.move(planner.move(dict(zip(here[:2], free[-2:], strict=False)), group))
    return len(here)
