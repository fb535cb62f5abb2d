"""When somebody's turn begins and ends, from probabilities of speech."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from omnilive.speech.vad import STEP

_EPSILON = 1e-6
_LEAP_BACK = 0.25


@dataclass(frozen=True)
class Began:
    """A turn has begun.

    Attributes:
        time: second at which its first word starts, at most.
    """

    time: float


@dataclass(frozen=True)
class Ended:
    """The turn that had begun has ended.

    Attributes:
        start, stop: seconds between which it lies.
        decided: second of the sound that was heard when its end was clear.
    """

    start: float
    stop: float
    decided: float


Event = Began | Ended


class Turns:
    """Cuts a stream of probabilities into turns; :class:`Began` and :class:`Ended` take turns.

    Speech starts at a step of ``threshold`` and is broken off by one under ``release`` until the
    next of ``threshold`` (silero-vad's two thresholds). It becomes a turn once it has lasted, and
    ends it once it was broken off for ``pause``. A clock that leaps back, or on by a pause, ends
    the turn where it was last heard.

    Args:
        threshold, release: probabilities; where speech begins, and under which it is broken off.
        shortest: seconds of speech that make a turn; less is a cough or a click.
        pause: seconds of silence that end one.
        longest: seconds after which one is ended while somebody still speaks.
        padding: seconds by which a turn is widened at both ends, as far as there is room.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        release: float = 0.35,
        shortest: float = 0.25,
        pause: float = 0.6,
        longest: float = 30.0,
        padding: float = 0.1,
    ) -> None:
        self._threshold, self._release = threshold, release
        self._shortest, self._pause = shortest, pause
        self._longest, self._padding = longest, padding
        # The end of the newest step, before the first one None.
        self._now: float | None = None
        self._deaf = -math.inf
        self._floor = -math.inf
        # Of speech that may become a turn: its start, the end of what was heard of it, since when
        # it is broken off, and where its turn begins once it is one.
        self._first: float | None = None
        self._last = -math.inf
        self._quiet: float | None = None
        self._began: float | None = None

    @property
    def open(self) -> bool:
        """Whether a turn has begun that has not ended."""
        return self._began is not None

    def feed(self, steps: Iterable[tuple[float, float]]) -> list[Event]:
        """What the next steps, each (second at which it starts, probability), decide."""
        return [event for time, probability in steps for event in self._step(time, probability)]

    def deaf(self, until: float) -> list[Event]:
        """Take what starts before a second for silence, as while an answer is spoken.

        ``math.inf`` is until told otherwise. A turn that had begun ends here.
        """
        self._deaf = until
        return self._end(self._now)

    def close(self, time: float) -> list[Event]:
        """End what has begun: the sound ends, or is turned off, at this second."""
        return self._end(time)

    def _step(self, time: float, probability: float) -> list[Event]:
        events = self._catch_up(time)
        if self._now is None:
            self._floor = self._now = time
        start = max(time, self._now)
        self._now = stop = max(start, time + STEP)
        # Whatever is no number is no speech.
        if start < self._deaf - _EPSILON or not probability >= self._release:
            self._quiet = start if self._quiet is None else self._quiet
        elif probability >= self._threshold:
            self._first = start if self._first is None else self._first
            self._last, self._quiet = stop, None
        elif self._quiet is None:
            self._last = stop
        if self._first is not None:
            events += self._decide(self._first, stop)
        return events

    def _catch_up(self, time: float) -> list[Event]:
        """Meet a clock that leapt, if it did."""
        if self._now is None or -_LEAP_BACK <= time - self._now < self._pause:
            return []
        back = time < self._now
        events = self._end(self._now if back else time)
        if back:
            # What is left of the deafness stays as long.
            self._deaf, self._now = self._deaf + time - self._now, time
        self._floor = time
        return events

    def _decide(self, first: float, now: float) -> list[Event]:
        events: list[Event] = []
        quiet = 0.0 if self._quiet is None else now - self._quiet
        if self._began is None and self._last - first >= self._shortest - _EPSILON:
            self._began = max(first - self._padding, self._floor, self._deaf)
            events.append(Began(self._began))
        if self._began is None:
            if quiet >= self._shortest - _EPSILON:
                self._forget()
        elif quiet >= self._pause - _EPSILON or now - first >= self._longest - _EPSILON:
            events += self._end(now)
        return events

    def _end(self, decided: float | None) -> list[Event]:
        began, last = self._began, self._last
        self._forget()
        if began is None:
            return []
        decided = last if decided is None else max(decided, last)
        self._floor = min(last + self._padding, decided)
        return [Ended(began, self._floor, decided)]

    def _forget(self) -> None:
        self._first = self._quiet = self._began = None
        self._last = -math.inf
