"""A microphone's turns: what finds speech and what cuts it, in one."""

from __future__ import annotations

import math
from collections.abc import Callable

from omnilive.speech.turns import Event, Turns
from omnilive.speech.vad import Samples, SpeechDetector

TAIL = 0.4
"""Seconds for which the room and the devices still hold an answer that was spoken."""


class Listener:
    """Tells when somebody's turn begins and ends in the sound that it is called with.

    Without echo cancellation a loudspeaker's answer would be heard as a turn: while ``speaking``,
    and shortly after, it is deaf, and a turn that had begun ends.

    Args:
        detector, turns: what it is made of; nobody else feeds them.
        tell: called with each event, on the thread that brings the sound.
        speaking: whether an answer is being spoken, asked at each call; None is never.
    """

    def __init__(
        self,
        detector: SpeechDetector,
        turns: Turns,
        tell: Callable[[Event], None],
        speaking: Callable[[], bool] | None = None,
    ) -> None:
        self._detector, self._turns, self._tell = detector, turns, tell
        self._speaking = speaking
        self._deaf = False

    def __call__(self, time: float, samples: Samples) -> None:
        """Hear ``float32[n]`` at 16 kHz, the first of them at ``time`` seconds."""
        deaf = self._speaking is not None and self._speaking()
        if deaf != self._deaf:
            self._deaf = deaf
            self._pass_on(self._turns.deaf(math.inf if deaf else time + TAIL))
        self._pass_on(self._turns.feed(self._detector.feed(samples, time)))

    def close(self, time: float) -> None:
        """The sound ends at this second, or is turned off: so does a turn that has begun."""
        self._pass_on(self._turns.close(time))

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            self._tell(event)
