"""Steps through kernels, each beside the same step spelled out.

The arena that kernels read begins full of NaN, and with tokens that come after all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from omni_core.backend import MovePlan, StepPlan, StepResult
from omni_cuda import ops
from tests.parity.oracle import distance, torch
from tests.parity.planner import Planner
from tests.parity.wandering import SHAPE

LATE = 1 << 40


class Pair:
    """A backend with kernels that runs every plan, and one without on the CPU that checks it."""

    def __init__(self, kernels: Any, plain: Any) -> None:
        self.kernels, self.plain = kernels, plain
        self.tables: set[int] = set()
        self.compared = 0

    def allocate(self, planner: Planner, processors: int | None = None, streams: int = 1) -> None:
        layout = planner.layout(SHAPE, streams)
        for backend in (self.kernels, self.plain):
            backend.allocate(layout)
            backend.arena.keys.fill_(float("nan"))
            backend.arena.values.fill_(float("nan"))
        self.kernels._steps.shared.order.fill_(LATE)
        self.kernels._steps.shared.bias.fill_(float("nan"))
        if processors:
            self.kernels._steps.shared.processors = processors

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        there = self.kernels.arena.keys.device
        pages = self.plain.mirror.preview_pages(plan)
        self.tables.add(max(np.unique(group.shift).size for group in pages))
        if embeddings is not None:
            embeddings = torch.as_tensor(embeddings)
        expected = self.plain.forward(plan, embeddings)
        given = None if embeddings is None else embeddings.to(there)
        found: StepResult = self.kernels.forward(plan, given)
        assert found.logits.dtype == np.float32
        assert found.logits.shape == expected.logits.shape
        if found.logits.size:
            assert distance(found.logits, expected.logits) < 1e-4
            self.compared += 1
        assert (found.mass is None) == (expected.mass is None)
        for mass, truth in zip(found.mass or (), expected.mass or (), strict=True):
            assert mass.shape == truth.shape
            assert np.abs(mass - truth).max() < 1e-4 * truth.max()
            self.compared += 1
        return found

    def move(self, plan: MovePlan) -> None:
        self.plain.move(plan)
        self.kernels.move(plan)


def spare_products(backend: Any) -> None:
    """Leave products to PyTorch on a CPU, where interpreting them would take most of the time."""
    if backend.device == "cpu":
        spelled_out = {name: getattr(ops.SPELLED_OUT, name) for name in ("linear", "gated")}
        backend._ops = replace(backend._ops, **spelled_out)
