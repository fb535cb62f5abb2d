"""The curriculum: longer streams once shorter ones are understood, with earlier ones mixed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from training.batch import MIX, Plan

GATE = 0.85
"""Share of right answers at which streams grow."""
REPLAY = 0.25
"""Share of steps on streams of an earlier length."""
_KEPT = ("stage", "right", "seen")
LONGEST = 0.25
"""Share of steps on the longest streams once they are reached; else half as long."""
TALKATIVE, TALK = 16, 0.3
"""Units from which streams may hold answered questions between units, and the share that do."""


@dataclass(frozen=True)
class Stage:
    """Streams of ``units`` with ``questions`` each, and the part of the training to leave it by."""

    units: int
    questions: int
    until: float


STAGES = (
    Stage(2, 3, 0.08),
    Stage(4, 4, 0.14),
    Stage(8, 6, 0.20),
    Stage(16, 10, 0.28),
    Stage(32, 16, 0.36),
    Stage(64, 32, 0.60),
    Stage(128, 48, 1.01),
)


@dataclass
class Curriculum:
    """Where training stands.

    Attributes:
        rows: units rendered a step, which the streams share.
        stage: index into ``stages``.
        right: running share of right answers at this stage.
    """

    rows: int
    stages: tuple[Stage, ...] = STAGES
    stage: int = 0
    right: float = 0.0
    seen: int = 0

    def plan(self, step: int, seed: int) -> Plan:
        """What step ``step`` is of."""
        draw = np.random.default_rng([seed, step, 5])
        index = self.stage
        last = len(self.stages) - 1
        if 0 < index == last and draw.random() > LONGEST:
            index -= 1
        if index and draw.random() < REPLAY:
            index = int(draw.integers(0, index))
        chosen = self.stages[index]
        streams = max(1, self.rows // chosen.units)
        turns = 2 if chosen.units >= TALKATIVE and draw.random() < TALK else 0
        return Plan(chosen.units, streams, chosen.questions, mix=MIX, turns=turns)

    def note(self, units: int, right: float, progress: float) -> bool:
        """Take in a step's share of right answers; true where the streams now grow."""
        if self.stage == len(self.stages) - 1:
            return False
        now = self.stages[self.stage]
        if units == now.units:
            self.seen += 1
            weight = max(0.05, 1 / self.seen)
            self.right += weight * (right - self.right)
        if not (self.seen >= 20 and self.right >= GATE) and progress < now.until:
            return False
        self.stage, self.right, self.seen = self.stage + 1, 0.0, 0
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {name: getattr(self, name) for name in _KEPT}

    def load(self, state: dict[str, Any]) -> None:
        """Take up a :meth:`state`."""
        for name in _KEPT:
            setattr(self, name, state[name])
