"""Steps through kernels: plans in fixed buffers, lengths in buckets, graphs where they pay.

A decode step is hundreds of kernels of a few microseconds: launched one by one, the card would wait
for Python. A step of a shape that was seen before is captured as a CUDA graph and replayed; what
differs between steps lies in buffers that the graph reads.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch

from omni_core.backend import SUBBLOCK, MovePlan, RestorePlan, StepPlan, StepResult
from omni_core.paging.mirror import TableMirror
from omni_core.units import Int32, Int64
from omni_cuda.devices import upload
from omni_cuda.kernels.move import move_cells
from omni_cuda.step import Shared, Step, StepShape

_MOST_SHAPES = 32
"""Shapes of steps whose buffers and graphs are kept: those of a stream whose units are of every
length up to the longest graph's, and a few more."""
_MOST_LOGITS = 64_000_000
"""Bytes of logits beyond which a step's buffers are not kept."""


class PagedSteps:
    """Runs the steps and moves of one arena. Nothing in a step waits for the device but its end."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._kept: OrderedDict[StepShape, Step] = OrderedDict()
        if shared.captures is not None:
            self._warm()

    def run(
        self, plan: StepPlan, mirror: TableMirror, embeddings: torch.Tensor | None
    ) -> StepResult:
        """Carry a plan out and have the mirror take it over; the device may compute on."""
        live = mirror.preview_pages(plan)
        shifts = max(np.unique(group.shift).size for group in live)
        shape = StepShape(
            bucket(plan.rows.size),
            1 << max(0, shifts - 1).bit_length(),
            plan.logits.size,
            embeddings is not None,
            mirror.merged,
            plan.mass,
        )
        step = self._step(shape)
        step.stage(plan, live)
        if embeddings is not None:
            step.embed(plan, embeddings)
        room, mass = step.room(), torch.empty(0)
        cells = []
        if plan.mass:
            mass = torch.empty(self.shared.mass.shape)
            cells = [group.cells for group in mirror.preview(plan)]
        step.compute()
        # All memory is there: what can fail now is the device, and nothing runs after that.
        mirror.commit(plan)
        logits = step.logits(room)
        if not plan.mass:
            return StepResult(logits)
        found = mass.copy_(self.shared.mass).numpy()
        return StepResult(logits, tuple(got[at] for got, at in zip(found, cells, strict=True)))

    def move(self, plan: MovePlan) -> None:
        """Copy cells with their places in the stream."""
        overlap = bool(np.isin(plan.target, plan.source).any())
        source, target = (upload(each, self.shared.device) for each in (plan.source, plan.target))
        self._copy(source, target, overlap)

    def seal(self, plan: MovePlan) -> None:
        """Take the biases of sealed cells along."""
        seals = plan.seals
        filled = seals.source >= 0
        target = seals.target[:, None] * SUBBLOCK + np.arange(SUBBLOCK)
        source, target = (upload(at[filled], self.shared.device) for at in (seals.source, target))
        bias = self.shared.bias.view(-1)
        bias[target.long()] = bias[source.long()]

    def note(self, plan: StepPlan) -> None:
        """Take over where in the stream the tokens of a step are that was run without kernels."""
        for cells in plan.cells:
            self._note(cells, plan.order, plan.counts)

    def restore(self, plan: RestorePlan) -> None:
        """Take over where in the stream the cells' tokens are, and their biases."""
        for part in zip(plan.cells, plan.order, plan.counts, strict=True):
            self._note(*part)

    def _note(self, cells: Int32, order: Int64, counts: Int32) -> None:
        shared = self.shared
        places = upload(cells, shared.device, torch.int64)
        shared.order.view(-1)[places] = upload(order, shared.device)
        shared.bias.view(-1)[places] = upload(np.log(counts).astype(np.float32), shared.device)

    def _copy(self, source: torch.Tensor, target: torch.Tensor, overlap: bool) -> None:
        shared = self.shared
        keys, values = shared.arena.keys, shared.arena.values
        move_cells(source, target, keys, values, shared.order, shared.bias, overlap=overlap)

    @torch.inference_mode()
    def _warm(self) -> None:
        """Compile what a stream needs before somebody waits for it; all pages are free."""
        step = self._step(StepShape(1, 2, 1, embedded=False, merged=False, mass=False))
        for _ in range(2):
            step.compute()
        cells = torch.arange(2, dtype=torch.int32, device=self.shared.device)
        self._copy(cells[:1], cells[1:], overlap=False)

    def _step(self, shape: StepShape) -> Step:
        shared = self.shared
        if 4 * shared.layout.streams * shape.logits * shared.text.vocab > _MOST_LOGITS:
            return Step(shared, shape)
        step = self._kept.pop(shape, None)
        if step is None:
            while len(self._kept) >= _MOST_SHAPES:
                self._kept.popitem(last=False)
            step = Step(shared, shape)
        self._kept[shape] = step
        return step


def bucket(count: int) -> int:
    """Tokens that a step of ``count`` is padded to, so that few shapes occur."""
    if count <= 2:
        return count
    grain = 16 if count <= 128 else 64
    return -(-count // grain) * grain
