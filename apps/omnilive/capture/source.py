"""A camera and a microphone on one clock, cut into units: what ``Player`` is for clips."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event
from typing import Self

import numpy as np

from omni_core import UnitMedia
from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.frontend.framing import UnitFramer
from omni_core.frontend.tracks import Frame, Samples
from omnilive.capture.camera import PictureSource
from omnilive.capture.clock import Clock, SteadyTime, Steps, SystemClock, Worker
from omnilive.capture.levels import decibels
from omnilive.capture.losses import Losses
from omnilive.capture.microphone import PATIENCE, SoundSource
from omnilive.capture.reopening import Host
from omnilive.capture.snapshot import Snapshot
from omnilive.decoding import Warn

TICK = 0.02
"""Seconds between two looks at the devices."""
_HOLD = 0.25
_OLD_PICTURE = 10.0
_LEVEL = SAMPLE_RATE // 10
_WARNINGS = 100
_ENDING = 1.5

Tap = Callable[[float, Samples], None]


class Capture:
    """Reads devices in the background; :meth:`units` hands out what the framer cuts.

    Sound is on time whatever the camera does, and runs without a gap: silence stands where a
    microphone gave none. A camera that lags or is gone holds no unit up.

    Args:
        camera, microphone: one of them at least.
        framer: with as many tracks as there are devices and from ``start`` on, as ``live_framer``
            makes it.
        clock: the system's if left out.
        duration: seconds of stream, or None for no end.
        start: second of the stream at which it begins.
        warn: called from the thread that takes the units.
        tap: given each run of sound, with the second of its first sample, ``float32[n]`` at 16 kHz,
            as it comes, on the capture's thread. What it raises ends the stream.
    """

    def __init__(
        self,
        camera: PictureSource | None,
        microphone: SoundSource | None,
        framer: UnitFramer,
        *,
        warn: Warn,
        clock: Clock | None = None,
        duration: float | None = None,
        start: float = 0.0,
        tap: Tap | None = None,
    ) -> None:
        self._camera, self._microphone, self._framer = camera, microphone, framer
        self._clock = SystemClock() if clock is None else clock
        self._warn, self._tap = warn, tap
        self._warnings: deque[str] = deque(maxlen=_WARNINGS)
        self._losses = Losses(warn)
        self._steady = SteadyTime(self._clock)
        self._start = start
        # Where the clock is when the stream begins, for the sources' second 0.
        self._zero: float | None = None
        self._limit = math.inf if duration is None else duration
        self._patience = min(PATIENCE, 0.75 * framer.seconds)
        self._stopped = self._muted = self._blind = self._opened = self._closed = False
        self._picture_ended = False
        self._ready = Event()
        self._pump: Worker | None = None
        self._failure: BaseException | None = None
        self._reach = 0
        self._behind = 0.0
        self._seen: tuple[float, Frame] | None = None
        self._tail = np.zeros(0, np.float32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def end(self) -> float:
        """Second of the stream up to which it was captured."""
        return self._start + self._captured

    def now(self) -> float:
        """Second of the stream; its start until it has begun."""
        return self._start + self._passed

    def open(self) -> None:
        """Open the devices, and wait until they work. What they give before :meth:`units` is lost.

        Raises:
            MediaError: one cannot be opened.
        """
        self._open()
        sources = [("camera", self._camera), ("microphone", self._microphone)]
        while not self._stopped:
            self._look()
            present = [(kind, source) for kind, source in sources if source is not None]
            for kind, source in present:
                if source.failure is not None:
                    self.close()
                    raise MediaError(
                        f"{kind} {source.name} {source.failure} (`omnilive devices` lists what "
                        f"there is; --{_OPTIONS[kind]} none goes on without)"
                    )
            if all(source.state != "opening" for _, source in present):
                return
            self._clock.wait(TICK)

    def units(self) -> Iterator[UnitMedia]:
        """The stream's units, until it is stopped or, of files alone, ends.

        Raises:
            MediaError: the stream could not go on.
        """
        self._begin()
        try:
            while not self._stopped:
                self._ready.clear()
                unit = self._framer.pop(0)
                self._pass_warnings_on()
                if unit is not None:
                    self._behind = max(0.0, self.now() - unit.stop)
                    yield unit
                elif self._framer.ended:
                    break
                else:
                    self._clock.wait(0.2, self._ready)
        finally:
            self.close()
        self._pass_warnings_on(last=True)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Capture no further. May be called from a signal handler."""
        self._stopped = True

    def close(self) -> None:
        """Let go of the devices, in two seconds at most. Twice is harmless."""
        self._stopped = True
        if self._closed:
            return
        self._closed = True
        until = self._clock.now() + _ENDING
        if self._pump is not None:
            self._pump.stop()
            self._pump.join(_ENDING)
        self._framer.close()
        workers: list[Worker] = []
        for source in (self._camera, self._microphone):
            if source is not None and self._opened:
                workers += source.close()
        for worker in workers:
            worker.join(max(0.0, until - self._clock.now()))

    def lag(self, time: float) -> float:
        """Milliseconds that the stream's second ``time`` lies in the past."""
        return max(0.0, round((self.now() - time) * 1e3, 1))

    def cut(self, time: float) -> None:
        """Close the running unit at a second of the stream: a turn has ended there."""
        self._framer.cut(time)
        if self._framer.waiting:
            self._ready.set()

    def mute(self, muted: bool) -> None:
        """Take silence for what the microphone gives, or listen again."""
        self._muted = muted

    def blind(self, blind: bool) -> None:
        """Switch the camera off, or on again."""
        self._blind = blind

    def view(self) -> Snapshot:
        """The state of things, for a screen; from any thread."""
        camera, microphone, now = self._camera, self._microphone, self.now()
        seen = self._seen
        heard = "none" if microphone is None else microphone.state
        return Snapshot(
            time=now,
            frame=seen[1] if seen is not None and now - seen[0] < _OLD_PICTURE else None,
            level_db=decibels(self._tail),
            camera="" if camera is None else camera.name,
            camera_state="none" if camera is None else "off" if self._blind else camera.state,
            microphone="" if microphone is None else microphone.name,
            microphone_state="muted" if self._muted and heard in ("on", "silent") else heard,
            dropped_frames=self._framer.dropped_frames,
            dropped_samples=self._framer.dropped_samples,
            skipped_frames=0 if camera is None else camera.skipped,
            filled_samples=0 if microphone is None else microphone.filled,
            waiting=self._framer.waiting,
            lag=self._behind,
        )

    @property
    def _passed(self) -> float:
        """Seconds since the stream began."""
        return 0.0 if self._zero is None else self._steady.now() - self._zero

    @property
    def _captured(self) -> float:
        """As many of them as were captured."""
        if self._microphone is not None:
            return self._reach / SAMPLE_RATE
        return min(self._passed, self._limit)

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        host = Host(self._clock, self._steady.now, self._warnings.append)
        if self._camera is not None:
            self._camera.open(host, self._framer.fps)
        if self._microphone is not None:
            self._microphone.open(host)
            self._microphone.begin(self._steady.now())

    def _look(self) -> None:
        """Keep the devices going before the stream begins."""
        if self._camera is not None:
            self._camera.take()
        if self._microphone is not None:
            self._microphone.begin(self._steady.now())
            self._microphone.take(0.0, 0.0)

    def _begin(self) -> None:
        self._open()
        zero = self._zero = self._steady.now()
        for source in (self._camera, self._microphone):
            if source is not None:
                source.begin(zero)
        self._pump = self._clock.run("capture", self._work())

    def _work(self) -> Steps:
        try:
            while not self._stopped and not self._step(self._passed):
                yield TICK
        except Exception as error:
            self._failure = error
        finally:
            self._framer.end_picture(self.end)
            self._framer.close()
            self._ready.set()

    def _step(self, now: float) -> bool:
        """Hand over what has come; True once nothing more will."""
        if self._microphone is not None:
            self._hear(self._microphone, now)
        if self._camera is not None:
            self._see(self._camera, now)
        if self._framer.waiting:
            self._ready.set()
        sources = [one for one in (self._camera, self._microphone) if one is not None]
        return self._captured >= self._limit or all(source.ended for source in sources)

    def _hear(self, microphone: SoundSource, now: float) -> None:
        samples = microphone.take(now, self._patience)
        if self._limit < math.inf:
            samples = samples[: max(0, round(self._limit * SAMPLE_RATE) - self._reach)]
        if self._muted:
            samples = np.zeros_like(samples)
        time = self.end
        self._reach += samples.size
        if samples.size:
            self._framer.push_sound(time, samples)
            self._tail = np.concatenate([self._tail, samples])[-_LEVEL:]
            if self._tap is not None:
                self._tap(time, samples)

    def _see(self, camera: PictureSource, now: float) -> None:
        blind = self._blind
        camera.rest(blind)
        newest = None if blind else camera.take()
        now = self._start + min(now, self._limit)
        if newest is not None and newest[0] <= self._limit:
            self._seen = (self._start + newest[0], newest[1])
            self._framer.push_frame(*self._seen)
        if camera.ended and not self._picture_ended:
            self._picture_ended = True
            self._framer.end_picture(now)
        if blind:
            self._seen = None
        self._framer.skip_picture(now if blind else now - _HOLD, blank=blind)

    def _pass_warnings_on(self, last: bool = False) -> None:
        while self._warnings:
            self._warn(self._warnings.popleft())
        microphone = self._microphone
        # Of one that is gone it is said that it is gone.
        hears = microphone is not None and (last or microphone.state == "on")
        filled = microphone.filled if microphone is not None and hears else 0
        frames, samples = self._framer.dropped_frames, self._framer.dropped_samples
        self._losses.tell(self.now(), frames, samples, filled, last=last)


_OPTIONS = {"camera": "camera", "microphone": "mic"}
