"""The curriculum: longer streams once shorter ones are understood, with earlier ones mixed in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from training.batch import MIX, Plan
from training.shape import SIZES, SQUARE

GATE = 0.85
"""Share of right answers at which streams grow."""
NEWEST, LATEST = (0.6, 0.2, 0.2), (0.12, 0.3, 0.58)
"""Share of steps on the longest streams so far, on the ones before them, and on all shorter ones;
and the same once there are no longer ones to come."""
_KEPT = ("stage", "right", "seen")
TALKATIVE, TALK = 16, 0.3
"""Units from which streams may hold answered questions between units, and the share that do."""

SHAPED, SHAPED_UNITS = 0.35, (4, 16, 64)
"""Share of frames that are not square, in streams of these lengths."""
_SHAPES = (0.35, 0.35, 0.15, 0.15)
"""How often each of ``SIZES`` after the square."""
LONG = 0.6
"""Share of spoken questions that lie anywhere in three seconds, as nobody waits for a unit."""
THIN = 0.4
"""Share of streams whose questions see little of old units."""


@dataclass(frozen=True)
class Stage:
    """Streams of ``units`` with ``questions`` each, and the part of the training to leave it by."""

    units: int
    questions: int
    until: float


STAGES = (
    Stage(2, 3, 0.03),
    Stage(4, 4, 0.06),
    Stage(8, 6, 0.10),
    Stage(16, 10, 0.16),
    Stage(32, 16, 0.26),
    Stage(64, 32, 0.50),
    Stage(128, 48, 0.70),
    Stage(256, 64, 1.01),
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
        index, last = self.stage, len(self.stages) - 1
        shares = LATEST if index == last else NEWEST
        back = int(draw.choice(3, p=shares))
        if back == 2 and index > 1:
            index = int(draw.integers(0, index - 1))
        else:
            index = max(0, index - back)
        chosen = self.stages[index]
        streams = max(1, self.rows // chosen.units)
        size = shaped(draw, SHAPED) if chosen.units in SHAPED_UNITS else SQUARE
        talk = chosen.units >= TALKATIVE and size == SQUARE and draw.random() < TALK
        turns = 2 if talk else 0
        base = Plan(chosen.units, streams, chosen.questions, long=LONG, mix=MIX, turns=turns)
        return replace(base, size=size, thin=THIN)

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


def shaped(draw: np.random.Generator, share: float) -> tuple[int, int]:
    """A size of frames: square but for ``share``."""
    if draw.random() >= share:
        return SQUARE
    return SIZES[1 + int(draw.choice(len(_SHAPES), p=_SHAPES))]
