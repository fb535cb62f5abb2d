"""Batches made ahead of time by other processes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np
import numpy.typing as npt

from training.batch import Plan, make_packed
from training.packing import Spec

Packed = tuple[npt.NDArray[np.uint8], Spec]

AHEAD = 28
"""Batches in the making at a time."""


def makers(count: int) -> ProcessPoolExecutor | None:
    """``count`` processes that make batches, already starting; None for none."""
    if not count:
        return None
    # A fork of a process that holds a GPU would hang.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    for _ in range(count):
        pool.submit(make_packed, Plan(2, 1, 1), 0)
    return pool


class Feeder:
    """Hands out the batches of one phase, step by step.

    Args:
        pool: who makes them; None for this process itself.
        plan: what a step is of.
        seed: gives a step's seed.
        step: the first step.
    """

    def __init__(
        self,
        pool: ProcessPoolExecutor | None,
        plan: Callable[[int], Plan],
        seed: Callable[[int], int],
        step: int,
    ) -> None:
        self._pool, self._plan, self._seed, self._next = pool, plan, seed, step
        self._queue: deque[tuple[Plan, Future[Packed]]] = deque()

    def next(self) -> tuple[Plan, Packed]:
        """The next step's plan and batch."""
        if self._pool is None:
            plan, seed = self._plan(self._next), self._seed(self._next)
            self._next += 1
            return plan, make_packed(plan, seed)
        while len(self._queue) < AHEAD:
            plan, seed = self._plan(self._next), self._seed(self._next)
            self._queue.append((plan, self._pool.submit(make_packed, plan, seed)))
            self._next += 1
        plan, made = self._queue.popleft()
        return plan, made.result()

    def stop(self) -> None:
        """Drop what is not yet begun."""
        for _, made in self._queue:
            made.cancel()
        self._queue.clear()
