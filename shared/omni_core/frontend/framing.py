"""Timed frames and sound, cut into units: bounded, thread-safe, nothing lost uncounted."""

from __future__ import annotations

import math
import threading
import time as clock
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable

import numpy as np

from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE, UnitMedia
from omni_core.frontend.tracks import (
    EPSILON,
    Frame,
    PictureTrack,
    Samples,
    SoundTrack,
    check_time,
    checked_frame,
    checked_samples,
)

UNINTERLEAVED = 30.0
"""Seconds by which one track of a file may lie behind the other."""
STALE = 10.0
"""Seconds after which a camera that sends no more frames no longer shows its last one."""
LONGEST_JUMP = 3600.0
"""Seconds that a source's clock may leap at once."""


class UnitFramer:
    """Cuts one clock's frames and sound into :class:`UnitMedia`.

    A capture thread pushes, the session pops. Frames are sampled at ``start + i / fps``: the frame
    shown then, by the frames' own times, whatever their rate; where none was shown yet, the first
    one of the unit. A unit closes when both tracks have reached its end, or when one is a whole
    unit ahead of the other, so picture and sound are never further apart than that; a picture
    that lags shows its last frame for up to 10 s.

    When units are not popped fast enough, the oldest waiting ones lose their frames first
    (``waiting``), and later go whole (``waiting_sound``); both losses are counted. With ``block``,
    for files read as fast as it goes, a push waits instead, nothing is dropped, and a unit waits
    up to 30 s for the track that lies behind.

    Args:
        seconds: length of a full unit.
        fps: frames a second to sample.
        picture, sound: which tracks there are; without sound a unit's ``audio`` is None.
        start: time of the first unit's start.
        waiting: units that may wait with their frames.
        waiting_sound: units that may wait at all.
        block: whether a push waits for room.
    """

    def __init__(
        self,
        seconds: float,
        fps: float,
        *,
        picture: bool = True,
        sound: bool = True,
        start: float = 0.0,
        waiting: int = 4,
        waiting_sound: int = 16,
        block: bool = False,
    ) -> None:
        if not (picture or sound):
            raise MediaError("the stream has neither picture nor sound: choose another source")
        self._seconds, self._fps, self._block = seconds, fps, block
        self._waiting, self._waiting_sound = waiting, max(waiting, waiting_sound)
        self._picture = PictureTrack(fps, 0.0 if block else STALE) if picture else None
        self._sound = SoundTrack(start) if sound else None
        self._start = start
        self._cuts: list[float] = []
        self._ready: deque[UnitMedia] = deque()
        self._closed = self._sound_ended = False
        self._dropped_frames = self._dropped_samples = 0
        self._change = threading.Condition()

    @property
    def seconds(self) -> float:
        """Length of a full unit."""
        return self._seconds

    @property
    def fps(self) -> float:
        """Frames a second that are sampled."""
        return self._fps

    @property
    def dropped_frames(self) -> int:
        """Frames that no unit will bring, for want of room or because they came too late."""
        with self._change:
            return self._dropped_frames + (self._picture.late if self._picture else 0)

    @property
    def dropped_samples(self) -> int:
        """Samples of sound that no unit will bring."""
        with self._change:
            return self._dropped_samples + (self._sound.late if self._sound else 0)

    @property
    def waiting(self) -> int:
        """Units that wait to be popped."""
        with self._change:
            return len(self._ready)

    @property
    def ended(self) -> bool:
        """Whether the stream was closed and its last unit popped."""
        with self._change:
            return self._closed and not self._ready

    def push_frame(self, time: float, frame: Frame) -> bool:
        """Add a frame ``uint8[H, W, 3]`` that is shown from ``time``; False once closed.

        Raises:
            MediaError: not a frame, no time, a leap of over an hour, or a stream without picture.
        """
        frame = checked_frame(time, frame)
        with self._change:
            if self._picture is None:
                raise MediaError("a frame came for a stream opened without picture")
            if not self._wait_for_room():
                return False
            self._check_jump(time)
            self._picture.push(time, frame, self._asked)
            self._advance()
            return True

    def push_sound(self, time: float, samples: Samples) -> bool:
        """Add mono ``float32[n]`` at 16 kHz whose first sample is at ``time``; False once closed.

        Any ``n`` will do. A hole before it is filled with silence.

        Raises:
            MediaError: not such sound, no time, a leap of over an hour, a stream without sound, or,
                with ``block``, sound that comes more than 30 s behind its picture.
        """
        samples = checked_samples(time, samples)
        with self._change:
            if self._sound is None:
                raise MediaError("sound came for a stream opened without sound")
            if not self._wait_for_room():
                return False
            self._check_jump(time)
            unit = max(1, round(self._seconds * SAMPLE_RATE))
            while (gap := self._sound.gap(time)) > 0:
                self._sound.append(np.zeros(min(gap, unit), np.float32))
                self._advance()
            late = self._sound.late
            self._sound.push(time, samples)
            if self._block and self._sound.missed and self._sound.late > late:
                raise MediaError(
                    f"the sound at {time:.3f} s came after its unit had closed, expected it within "
                    f"{UNINTERLEAVED:.0f} s of its picture: write the clip anew with its tracks "
                    "interleaved"
                )
            self._advance()
            return True

    def cut(self, time: float) -> None:
        """Close the running unit at ``time``, also one still to come; the next unit starts there.

        A time that lies in units already closed changes nothing.

        Raises:
            MediaError: no time.
        """
        check_time("cut", time)
        time = round(time * SAMPLE_RATE) / SAMPLE_RATE
        with self._change:
            if time > self._start + EPSILON and time not in self._cuts:
                insort(self._cuts, time)
                self._advance()

    def skip_picture(self, time: float, *, blank: bool = False) -> None:
        """No frame will come before ``time``: units wait for none until then.

        The last one shows on, unless ``blank`` says that there is nothing to see from ``time`` on.

        Raises:
            MediaError: no time.
        """
        check_time("pause of the picture", time)
        with self._change:
            if self._picture is not None and not self._closed:
                self._picture.skip(time, blank)
                self._advance()

    def end_picture(self, time: float | None = None) -> None:
        """No more frames: the picture ends at ``time``, else one frame after the last one."""
        with self._change:
            if self._picture is not None:
                self._picture.finish(time)
                self._advance()

    def end_sound(self) -> None:
        """No more sound."""
        with self._change:
            self._sound_ended = True
            self._advance()

    def close(self) -> None:
        """End the stream: what is left becomes a last unit of its own length. Twice is harmless."""
        with self._change:
            if not self._closed:
                self._sound_ended = True
                if self._picture is not None:
                    self._picture.finish(None)
                self._advance()
                end = self._end()
                while self._start < end - EPSILON:
                    self._emit(min(self._stop(self._start), end))
                self._closed = True
                self._change.notify_all()

    def pop(self, timeout: float | None = None) -> UnitMedia | None:
        """The next unit, waiting up to ``timeout`` seconds; None if none came (see ``ended``)."""
        with self._change:
            self._wait(lambda: bool(self._ready) or self._closed, timeout)
            if not self._ready:
                return None
            unit = self._ready.popleft()
            self._change.notify_all()
            return unit

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        # A wait without end cannot be interrupted on every platform, hence the short steps.
        until = math.inf if timeout is None else clock.monotonic() + timeout
        while not condition() and (left := until - clock.monotonic()) > 0:
            self._change.wait(min(left, 0.5))

    def _wait_for_room(self) -> bool:
        if self._block:
            self._wait(lambda: len(self._ready) < self._waiting or self._closed, None)
        return not self._closed

    def _check_jump(self, time: float) -> None:
        if time - self._start > LONGEST_JUMP:
            raise MediaError(
                f"a time of {time:.3f} s came while the stream is at {self._start:.3f} s, expected "
                "times of one running clock: count the source's time from the stream's start"
            )

    def _stop(self, start: float) -> float:
        stop = start + self._seconds
        after = bisect_right(self._cuts, start + EPSILON)
        return min(stop, self._cuts[after]) if after < len(self._cuts) else stop

    def _instants(self, start: float, stop: float) -> list[float]:
        count = math.ceil((stop - start) * self._fps - EPSILON)
        return [start + i / self._fps for i in range(max(1, count))]

    def _asked(self, low: float, high: float) -> bool:
        """Whether a sample instant lies in ``[low, high)``, as far as cuts are known."""
        start = self._start
        while start < high:
            stop = self._stop(start)
            if stop > low and any(low <= instant < high for instant in self._instants(start, stop)):
                return True
            start = stop
        return False

    def _reached(self) -> tuple[float, float]:
        """How far picture and sound have come; a track that has ended holds nothing up."""
        seen = heard = math.inf
        if self._picture is not None and self._picture.end is None:
            seen = self._picture.reach
        if self._sound is not None and not self._sound_ended:
            heard = self._sound.reach / SAMPLE_RATE
        return seen, heard

    def _advance(self) -> None:
        """Emit every unit whose end has been reached."""
        slack = UNINTERLEAVED if self._block else self._seconds
        while True:
            stop = self._stop(self._start)
            seen, heard = self._reached()
            running = [max(t, self._start) for t in (seen, heard) if t < math.inf]
            if self._sound is None or self._sound_ended:
                complete = stop - EPSILON <= seen < math.inf
            else:
                last = self._instants(self._start, stop)[-1]
                complete = heard >= stop - EPSILON and seen >= last - EPSILON
            apart = max(running) - min(running) if running else 0.0
            late = apart >= slack - EPSILON and max(running) >= stop - EPSILON
            if not (complete or late):
                return
            self._emit(stop)

    def _end(self) -> float:
        """Where a closed stream ends: with its sound, unless a frame comes after that."""
        heard = self._sound.reach / SAMPLE_RATE if self._sound is not None else self._start
        if self._picture is None or self._picture.newest is None or self._picture.end is None:
            return heard
        return heard if self._picture.newest < heard - EPSILON else max(heard, self._picture.end)

    def _emit(self, stop: float) -> None:
        start = self._start
        frames: tuple[Frame, ...] = ()
        if self._picture is not None:
            frames = self._picture.sample(self._instants(start, stop), stop)
            self._picture.drop_before(stop)
        audio = self._sound.take(stop) if self._sound is not None else None
        self._ready.append(UnitMedia(start, stop, frames, audio))
        self._start = stop
        del self._cuts[: bisect_right(self._cuts, stop + EPSILON)]
        if not self._block:
            self._shed()
        self._change.notify_all()

    def _shed(self) -> None:
        """Drop what waits beyond the bounds: the oldest frames first, then the oldest units."""
        pictured = [i for i, unit in enumerate(self._ready) if unit.frames]
        for index in pictured[: max(0, len(pictured) - self._waiting)]:
            unit = self._ready[index]
            self._dropped_frames += len(unit.frames)
            self._ready[index] = UnitMedia(unit.start, unit.stop, (), unit.audio)
        limit = self._waiting if self._sound is None else self._waiting_sound
        while len(self._ready) > limit:
            unit = self._ready.popleft()
            self._dropped_frames += len(unit.frames)
            self._dropped_samples += unit.audio.size if unit.audio is not None else 0
