"""The pace of a recording: when each unit is due, and what was shown at that time."""

from __future__ import annotations

import time as clock
from collections import deque

from omni_core.frontend.base import UnitMedia
from omni_core.recording import Recording
from omnilive.output import Text


class Pace:
    """Holds each unit back until it would have been captured.

    What people were shown then is shown again, unless ``quiet``.
    """

    def __init__(self, recording: Recording, quiet: bool) -> None:
        events = [] if quiet else list(recording.events())
        self._events = deque(event for event in events if event["event"] not in _PASSED_OVER)
        self._output = Text()
        self._began: float | None = None

    def wait(self, media: UnitMedia) -> None:
        """Return when a unit is due."""
        if self._began is None:
            self._began = clock.monotonic() - media.start
        # What came before this unit is told before it: its own events carry the time of its end.
        self._show(media.start)
        while (left := self._began + media.stop - clock.monotonic()) > 0:
            clock.sleep(min(left, 0.5))

    def show_rest(self) -> None:
        """Show what followed the last unit."""
        self._show(float("inf"))

    def _show(self, until: float) -> None:
        while self._events and self._events[0]["t"] <= until + _SAME:
            event = self._events.popleft()
            if event["event"] == "answer":
                self._output.question(event["t"], event["question"])
            self._output.event(event)


_PASSED_OVER = ("token", "summary")
_SAME = 1e-3
