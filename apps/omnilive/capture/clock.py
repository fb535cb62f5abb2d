"""The one clock of a stream: the system's, or a virtual one on which hours pass in seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from heapq import heappop, heappush
from typing import Protocol

LONGEST_SLEEP = 10.0
"""Seconds between two looks at the clock beyond which the machine is taken to have slept."""

Steps = Generator[float, None, None]
"""Work in steps: what it yields is the seconds until the next one. Closed when it is to end."""


class Worker(Protocol):
    """Work that goes on beside the caller."""

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        ...

    def stop(self) -> None:
        """Ask it to end, and return at once."""
        ...

    def join(self, seconds: float) -> None:
        """Wait for its end, for so long at most."""
        ...


class Clock(Protocol):
    """Time, waiting for it, and work that takes place in it."""

    def now(self) -> float:
        """Seconds from some beginning."""
        ...

    def wait(self, seconds: float, event: threading.Event | None = None) -> None:
        """Let time pass, until the event is set at most."""
        ...

    def run(self, name: str, steps: Steps) -> Worker:
        """Start work. What it raises it must handle itself."""
        ...


class SystemClock:
    """The machine's own clock, which never goes back; work has a thread of its own."""

    def now(self) -> float:
        """Seconds of :func:`time.monotonic`."""
        return time.monotonic()

    def wait(self, seconds: float, event: threading.Event | None = None) -> None:
        """Sleep."""
        if event is None:
            time.sleep(seconds)
        else:
            event.wait(seconds)

    def run(self, name: str, steps: Steps) -> Worker:
        """Start a daemon thread."""
        return _Thread(name, steps)


class _Thread:
    def __init__(self, name: str, steps: Steps) -> None:
        self._steps, self._stopped = steps, threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopped.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _work(self) -> None:
        try:
            for pause in self._steps:
                if self._stopped.wait(pause):
                    return
        finally:
            self._steps.close()


class VirtualClock:
    """A clock whose time passes in :meth:`wait` alone, where all work of that time is done.

    Everything happens on the caller's thread, in the order of its time: the same every time.
    """

    def __init__(self) -> None:
        self._time = self._offset = 0.0
        self._count = 0
        self._due: list[tuple[float, int, _Task]] = []

    def now(self) -> float:
        """Seconds from 0, leaps included."""
        return self._time + self._offset

    def leap(self, seconds: float) -> None:
        """Put the clock forward or back, as nothing else of the world does."""
        self._offset += seconds

    def wait(self, seconds: float, event: threading.Event | None = None) -> None:
        """Do what is due until then, or until the event is set."""
        until = self._time + seconds
        while event is None or not event.is_set():
            if not self._due or self._due[0][0] > until:
                self._time = max(self._time, until)
                return
            moment, _, task = heappop(self._due)
            self._time = max(self._time, moment)
            pause = task.step()
            if pause is not None:
                self._put(pause, task)

    def run(self, name: str, steps: Steps) -> Worker:
        """Have work done in :meth:`wait`."""
        task = _Task(steps)
        self._put(0.0, task)
        return task

    def _put(self, pause: float, task: _Task) -> None:
        self._count += 1
        heappush(self._due, (self._time + pause, self._count, task))


class _Task:
    def __init__(self, steps: Steps) -> None:
        self._steps, self.alive = steps, True

    def stop(self) -> None:
        self.alive = False
        # Work that stops itself is closed when its step is over.
        if not self._steps.gi_running:
            self._steps.close()

    def join(self, seconds: float) -> None:
        pass

    def step(self) -> float | None:
        pause = next(self._steps, None) if self.alive else None
        self.alive = self.alive and pause is not None
        if not self.alive:
            self._steps.close()
        return pause if self.alive else None


class SteadyTime:
    """A clock's seconds without its leaps back, and without the time that the machine slept."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._last = clock.now()
        self._shift = 0.0

    def now(self) -> float:
        """Seconds; never less than before."""
        with self._lock:
            raw = self._clock.now()
            step = raw - self._last
            if step < 0 or step > LONGEST_SLEEP:
                self._shift -= step
            self._last = raw
            return raw + self._shift
