"""Saying what a stream loses: at once when it begins, and then now and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omni_core.frontend.base import SAMPLE_RATE

PERIOD = 10.0
"""Seconds between two lines about the same loss."""
_SETTLED = 0.5


@dataclass
class _Loss:
    text: Callable[[int], str]
    told: int = 0
    due: float = 0.0

    def line(self, now: float, count: int, at_once: bool) -> str | None:
        if count <= self.told or (now < self.due and not at_once):
            return None
        self.told, self.due = count, now + PERIOD
        return self.text(count)


class Losses:
    """Turns growing counts into lines for people, no more than one in 10 seconds of each kind."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._frames = _Loss(lambda n: f"the model is late: {n} frames dropped so far")
        self._dropped = _Loss(
            lambda n: (
                f"the model is late: {n / SAMPLE_RATE:.1f} s of sound dropped so far; "
                "a smaller model would keep up"
            )
        )
        self._filled = _Loss(
            lambda n: (
                f"the microphone lost {n / SAMPLE_RATE:.2f} s of sound so far; silence is in "
                "its place"
            )
        )
        self._seen, self._since = 0, 0.0

    def tell(
        self, now: float, frames: int, dropped: int, filled: int, *, last: bool = False
    ) -> None:
        """Take the counts at a second: frames and samples dropped, samples of silence put in.

        At the ``last`` time nothing that has not been told is held back.
        """
        # How much sound a microphone lost is known when it gives some again.
        if filled != self._seen:
            self._seen, self._since = filled, now
        over = last or now - self._since >= _SETTLED
        counts = [(self._frames, frames), (self._dropped, dropped)]
        counts += [(self._filled, filled)] if over else []
        for loss, count in counts:
            line = loss.line(now, count, last)
            if line is not None:
                self._warn(line)
