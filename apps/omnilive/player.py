"""Playing a clip into a framer on a thread of its own, at its own pace or as fast as it goes."""

from __future__ import annotations

import threading
import time as clock
from collections.abc import Iterator
from queue import Empty, SimpleQueue

from omni_core import UnitMedia
from omni_core.frontend.framing import UnitFramer
from omni_core.tracing import NO_TRACE, Tracer
from omnilive.clip import Clip
from omnilive.decoding import Warn
from omnilive.stream import push, timeline


class Player:
    """Reads a clip in the background; :meth:`units` hands out what the framer cuts.

    Args:
        clip: what is played.
        framer: made with ``block`` where the clip is not paced.
        paced: keep the clip's own time; media that are not taken in time are then dropped.
        loop, duration, start: as :func:`omnilive.stream.timeline`.
        warn: called from the thread that takes the units.
        tracer: measures the waiting for each unit.
    """

    def __init__(
        self,
        clip: Clip,
        framer: UnitFramer,
        *,
        paced: bool,
        loop: int,
        duration: float | None,
        warn: Warn,
        start: float = 0.0,
        tracer: Tracer = NO_TRACE,
    ) -> None:
        self._clip, self._framer, self._paced, self._warn = clip, framer, paced, warn
        self._media = timeline(clip, self._put_warning, loop, duration, start)
        self._start, self._tracer = start, tracer
        self._warnings: SimpleQueue[str] = SimpleQueue()
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._began = 0.0
        self._thread = threading.Thread(target=self._read, name="clip", daemon=True)
        self.end = start
        """Seconds of stream that were read."""

    def units(self) -> Iterator[UnitMedia]:
        """The clip's units, until it ends or is stopped.

        Raises:
            MediaError: the clip could not be read on.
        """
        self._began = clock.monotonic() - self._start
        self._thread.start()
        try:
            while not self._stopped.is_set():
                unit = self._next()
                if unit is not None:
                    yield unit
                else:
                    break
        finally:
            self.stop()
            # A reader that waits for room goes on only when the framer is closed.
            self._framer.close()
            self._thread.join(2)
        self._pass_warnings_on()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Read no further. May be called from a signal handler."""
        self._stopped.set()

    def lag(self, time: float) -> float:
        """Milliseconds that the stream's second ``time`` lies behind the clip's own clock."""
        if not self._paced:
            return 0.0
        return max(0.0, round((clock.monotonic() - self._began - time) * 1e3, 1))

    def _next(self) -> UnitMedia | None:
        """The next unit; None once there is none, or after :meth:`stop`."""
        with self._tracer.span("capture") as span:
            while not self._stopped.is_set():
                unit = self._framer.pop(0.2)
                self._pass_warnings_on()
                if unit is not None:
                    span.add(start=unit.start, stop=unit.stop)
                    return unit
                if self._framer.ended:
                    break
        return None

    def _read(self) -> None:
        try:
            for item in self._media:
                if self._paced:
                    self._stopped.wait(self._began + item.ready - clock.monotonic())
                if self._stopped.is_set() or not push(self._framer, item):
                    return
                self.end = max(self.end, item.stop)
            self._framer.end_picture(self.end)
        except BaseException as error:
            self._failure = error
        finally:
            self._framer.close()

    def _put_warning(self, message: str) -> None:
        self._warnings.put(message)

    def _pass_warnings_on(self) -> None:
        while True:
            try:
                self._warn(self._warnings.get_nowait())
            except Empty:
                return
