"""How far a phase of training is, and the learning rate there."""

from __future__ import annotations

import math
from dataclasses import dataclass

WARM_UP = 100
FLAT = 0.5
LOWEST = 0.03


@dataclass(frozen=True)
class Length:
    """How long a phase lasts: whichever of steps and minutes of training is over first."""

    steps: int
    minutes: float = math.inf

    def progress(self, step: int, seconds: float) -> float:
        """Part of the phase that is done, 0 to 1."""
        return min(1.0, max(step / self.steps, seconds / (60 * self.minutes)))


def factor(step: int, progress: float) -> float:
    """Warm-up over 100 steps, constant to half of the phase, then half a cosine down to 0.03."""
    warm = min(1.0, (step + 1) / WARM_UP)
    part = (progress - FLAT) / (1 - FLAT)
    if part <= 0:
        return warm
    return warm * (LOWEST + (1 - LOWEST) * 0.5 * (1 + math.cos(math.pi * part)))
