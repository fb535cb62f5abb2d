"""A backend that computes nothing, to measure the core alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from omni_core.backend import ArenaLayout, MemoryReport, MovePlan, StepPlan, StepResult
from omni_core.paging.mirror import TableMirror

_WEIGHTS = 1_000_003


class NullBackend:
    """Zero logits, and attention mass from a heavy-tailed draw for each token.

    A few tokens of a stream get most of its attention (Zhang et al. 2023): each token has a weight
    from a Pareto distribution, and gets its share of every query.

    Attributes:
        seconds: processor time spent in here, which is not the core's.
    """

    name, device, element = "null", "none", 2

    def __init__(self, seed: int = 0) -> None:
        self._weights = np.random.default_rng(seed).pareto(1.2, _WEIGHTS).astype(np.float32) + 1e-3
        self._mirror: TableMirror | None = None
        self.seconds = 0.0
        self.allocations = 0

    def allocate(self, layout: ArenaLayout) -> None:
        """Keep page tables to know the live cells by."""
        self._mirror = TableMirror(layout)
        self.allocations += 1

    def encode(self, vision: Any, audio: Any) -> Any:
        """Nothing."""
        return None

    def stack(self, units: Any) -> Any:
        """Nothing."""
        return None

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        """Zeros, and mass where it is asked for."""
        start = time.thread_time()
        logits = np.zeros((len(plan.tokens), plan.logits.size, 2), np.float32)
        mass = None
        if plan.mass and self._mirror:
            live = self._mirror.preview(plan)
            self._mirror.commit(plan)
            shares = [self._weights[group.order % _WEIGHTS] for group in live]
            mass = tuple(plan.order.size * share / share.sum() for share in shares)
        self.seconds += time.thread_time() - start
        return StepResult(logits, mass)

    def move(self, plan: MovePlan) -> None:
        """Follow the page tables."""
        start = time.thread_time()
        if self._mirror:
            self._mirror.commit(plan)
        self.seconds += time.thread_time() - start

    def memory(self) -> MemoryReport:
        """None."""
        return MemoryReport(0, 0, 0, 0, "process")
