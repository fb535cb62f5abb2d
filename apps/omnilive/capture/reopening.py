"""Keeping a device open: what fails, vanishes or stalls is closed, and after a pause reopened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from omnilive.capture.clock import Clock, Worker

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds from a failure to the next try; the last one is repeated."""
OPENING = 10.0
"""Seconds that opening may take: cameras take their time, and people for their consent."""
_STUCK = 2
_SETTLED = 10.0
_LEAP = 1.0


@dataclass(frozen=True)
class Host:
    """What a source is given by the capture that it belongs to.

    Attributes:
        clock: where its work runs.
        time: steady seconds, callable from any thread.
        warn: takes a line for people, from any thread.
    """

    clock: Clock
    time: Callable[[], float]
    warn: Callable[[str], None]


class Opening(Protocol):
    """One device opened once."""

    worker: Worker
    heard: float | None
    """When it last gave a sign of life."""
    failure: str | None
    """Why it has ended, for people."""


T = TypeVar("T", bound=Opening)


class Reopener(Generic[T]):
    """Holds a device's current opening; :meth:`tend` is called all the time, from one thread.

    Args:
        name: the device, for people.
        host: time and warnings.
        start: begins an opening.
        stall: seconds without a sign of life after which the device is opened anew.
    """

    def __init__(self, name: str, host: Host, start: Callable[[], T], stall: float) -> None:
        self._name, self._host, self._start, self._stall = name, host, start, stall
        self._stopped: list[Worker] = []
        self._tries = 0
        self._due = self._began = self._alive = self._looked = host.time()
        self._lost: float | None = None
        self.opening: T | None = None
        """The current one, if there is one."""
        self.failure: str | None = None
        """Why the last one ended."""

    @property
    def state(self) -> str:
        """``opening``, ``on`` or ``lost``."""
        if self.opening is not None and self.opening.heard is not None:
            return "on"
        return "opening" if self.failure is None else "lost"

    def tend(self) -> T | None:
        """Look after the device; returns its current opening."""
        now = self._host.time()
        if now - self._looked > _LEAP:
            # Nobody looked for so long: that says nothing about the device.
            self._alive = now
        self._looked = now
        opening = self.opening
        if opening is None:
            self._try(now)
            return self.opening
        if opening.heard is not None and opening.heard > self._alive:
            self._alive = opening.heard
        limit = OPENING if opening.heard is None else self._stall
        failure = opening.failure
        if failure is None and now - self._alive > limit:
            failure = f"gives nothing for {limit:g} s"
        if failure is not None:
            self._fail(now, failure)
        elif opening.heard is not None:
            self._works(now)
        return self.opening

    def close(self) -> None:
        """Ask the current opening to end; :meth:`tend` would start another at once."""
        if self.opening is not None:
            self.opening.worker.stop()
            self._stopped.append(self.opening.worker)
            self.opening = None

    def fail(self, failure: str) -> None:
        """Give the current opening up for a reason that only its user can see."""
        if self.opening is not None:
            self._fail(self._host.time(), failure)

    def workers(self) -> list[Worker]:
        """Those that were asked to end and have not yet done so."""
        self._stopped = [worker for worker in self._stopped if worker.alive]
        return self._stopped

    def _try(self, now: float) -> None:
        # Drivers may hang for good: no more of them than this.
        if now >= self._due and len(self.workers()) < _STUCK:
            self._began = self._alive = now
            self.opening = self._start()

    def _fail(self, now: float, failure: str) -> None:
        self.close()
        self.failure = failure
        self._due = now + PAUSES[min(self._tries, len(PAUSES) - 1)]
        self._tries += 1
        if self._lost is None:
            self._lost = now
            self._host.warn(f"{self._name} {failure}; trying to open it again")

    def _works(self, now: float) -> None:
        self.failure = None
        if self._lost is not None:
            self._host.warn(f"{self._name} is back after {now - self._lost:.1f} s")
            self._lost = None
        if now - self._began > _SETTLED:
            self._tries = 0


def one_line(error: BaseException) -> str:
    """What an error of somebody else's library says, short enough for a line."""
    lines = str(error).strip().splitlines()
    return (lines[0][:200] if lines else "") or type(error).__name__
