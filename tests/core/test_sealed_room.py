"""Long streams through sealed pages, by plans alone: there is room for what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy_backend import SEALABLE, NumpyBackend, PlainFrontend, second

from omni_core.backend import FREE, ArenaLayout, MovePlan, StepPlan, StepResult
from omni_core.model import Model
from omni_core.paging.mirror import TableMirror
from omni_core.plan_checks import check_layout
from omni_core.sealing import WAITING
from omni_core.session import Session


class PlansOnly(NumpyBackend):
    """Checks plans and takes them over; logits are drawn."""

    element = 2
    _draw = np.random.default_rng(5)

    def allocate(self, layout: ArenaLayout) -> None:
        check_layout(layout, self.text, 1, seals=True)
        self.layout, self.mirror = layout, TableMirror(layout)
        self.allocations += 1

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        self.mirror.check(plan)
        self.mirror.commit(plan)
        shape = (1, plan.logits.size, self.text.vocab)
        return StepResult(self._draw.normal(size=shape).astype(np.float32), None)

    def move(self, plan: MovePlan) -> None:
        self.mirror.check(plan)
        self.mirror.commit(plan)


@pytest.mark.parametrize(
    ("reach", "vision", "audio", "frame", "seal"),
    [(32768, 40, 3, 90, "all"), (1024, 16, 25, None, "recent")],
)
def test_frames_that_close_leave_room_for_others(
    reach: int, vision: int, audio: int, frame: int | None, seal: str
) -> None:
    text = replace(SEALABLE, max_positions=reach)
    model = Model(PlansOnly(text=text), PlainFrontend(vision, audio), text, "plain")
    session = Session(
        model, budget=1334, retention="omnipick", frame=frame, kv_bits=2, seal=seal, max_tokens=20
    )
    cache = session._cache
    assert cache.sealing is not None
    first, waiting = cache.tables.arena.pages, 0
    for index in range(500):
        session.append(second(index))
        if index % 5 == 4:
            session.ask("what?")
        usage = cache.usage()
        waiting = max(waiting, usage["cells"] - usage["sealed_cells"])
        assert (cache.tables._group[first:] == FREE).any()
    # The largest turn is a question of as many tokens as may be, and an answer.
    assert waiting <= cache.sealing.held(cache.prefix, 128 + 20) + WAITING
    assert len(cache.ledger) >= cache.low - vision - audio
