"""What is waiting of a stream's picture and sound until a unit of it is cut."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE

Frame = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.float32]

EPSILON = 1e-6
"""Seconds within which two times are the same: clocks arrive as fractions."""
JITTER = 0.1
"""Seconds by which a sound chunk's time may differ from where the last one ended: beyond, there is
a hole, which is filled with silence, or an overlap, which is dropped."""


def to_samples(seconds: float) -> int:
    """The sample nearest to a time."""
    return round(seconds * SAMPLE_RATE)


class PictureTrack:
    """Timed frames, of which only those that a sample instant can ask for are kept.

    A frame is shown until the next one comes, for ``hold`` seconds at most.

    Attributes:
        newest: time of the newest frame in seconds, None before the first.
        reach: time up to which it is known what is shown.
        end: where the picture ends, None while it runs.
        late: frames refused because a later one was there already.
    """

    def __init__(self, fps: float, hold: float) -> None:
        self.newest: float | None = None
        self.end: float | None = None
        self.late = 0
        self.reach = -math.inf
        self._fps, self._hold = fps, hold
        self._frames: deque[tuple[float, Frame | None]] = deque()
        self._gap = 1 / fps

    def push(self, time: float, frame: Frame, asked: Callable[[float, float], bool]) -> None:
        """Add a frame; ``asked(a, b)`` says whether an instant lies in ``[a, b)``.

        The frame before is kept only where an instant falls while it is shown.
        """
        if self.newest is not None and time < self.newest - EPSILON:
            self.late += 1
            return
        if self.newest is not None:
            self._gap = min(1 / self._fps, time - self.newest)
            if len(self._frames) > 1 and not asked(self.newest - EPSILON, time - EPSILON):
                self._frames.pop()
        if self._frames and self._frames[-1][0] > time:
            # It was taken before the picture went blank, and came after.
            self.late += 1
            return
        self._frames.append((time, frame))
        self.newest = time
        self.reach = max(self.reach, time)

    def skip(self, time: float, blank: bool) -> None:
        """No frame comes before ``time``; with ``blank`` none is shown from there on either."""
        self.reach = max(self.reach, time)
        if blank and self._frames and self._frames[-1][1] is not None:
            self._frames.append((max(time, self._frames[-1][0]), None))

    def finish(self, end: float | None) -> None:
        """No frame follows; without ``end`` the last one shows as long as the one before it did."""
        if self.end is None and self.newest is not None:
            self.end = self.newest + self._gap if end is None else max(end, self.newest)

    def sample(self, instants: list[float], stop: float) -> tuple[Frame, ...]:
        """The frame shown at each instant, or where there is none yet the first before ``stop``.

        Instants past the picture's end, or past what the newest frame may be held for, have none.
        """
        shown = []
        for instant in instants:
            if self.newest is None:
                break
            held = self.newest + self._hold + EPSILON
            if instant > (held if self.end is None else self.end - EPSILON):
                break
            past = [frame for time, frame in self._frames if time <= instant + EPSILON]
            if not past and self._frames[0][0] < stop - EPSILON:
                past = [self._frames[0][1]]
            if past and past[-1] is not None:
                shown.append(past[-1])
        return tuple(shown)

    def drop_before(self, time: float) -> None:
        """Forget frames that no instant at or after ``time`` can show."""
        while len(self._frames) > 1 and self._frames[1][0] <= time + EPSILON:
            self._frames.popleft()


class SoundTrack:
    """Timed samples in one unbroken line.

    Attributes:
        reach: sample up to which sound has come, counted from the stream's zero.
        late: samples refused because their time had passed.
        missed: samples that units went without because they had not come yet.
    """

    def __init__(self, start: float) -> None:
        self.reach = to_samples(start)
        self.late = self.missed = 0
        self._from = self.reach
        self._chunks: deque[Samples] = deque()

    def gap(self, time: float) -> int:
        """Samples of silence that lie before a chunk that starts at ``time``."""
        missing = to_samples(time) - self.reach
        return missing if missing > JITTER * SAMPLE_RATE else 0

    def push(self, time: float, samples: Samples) -> None:
        """Add a chunk after the last one; an overlap of more than jitter is dropped and counted."""
        overlap = self.reach - to_samples(time)
        if overlap > JITTER * SAMPLE_RATE:
            self.late += min(overlap, samples.size)
            samples = samples[overlap:]
        self.append(samples)

    def append(self, samples: Samples) -> None:
        """Add samples where the last ones ended."""
        if samples.size:
            self._chunks.append(samples)
            self.reach += samples.size

    def take(self, stop: float) -> Samples:
        """Remove and return the samples before ``stop``; the line goes on there."""
        end = to_samples(stop)
        wanted, parts = end - self._from, []
        while wanted > 0 and self._chunks:
            chunk = self._chunks.popleft()
            parts.append(chunk[:wanted])
            if chunk.size > wanted:
                self._chunks.appendleft(chunk[wanted:])
            wanted -= parts[-1].size
        self._from = end
        self.missed += max(0, wanted)
        self.reach = max(self.reach, end)
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def samples_from_s16(data: bytes) -> tuple[Samples, bytes]:
    """Little-endian 16-bit mono sound as ``float32[n]`` in [-1, 1), and the odd byte left over.

    The byte belongs in front of the next chunk.
    """
    whole = len(data) - len(data) % 2
    levels = np.frombuffer(data[:whole], "<i2")
    return levels.astype(np.float32) / np.float32(32768), data[whole:]


def checked_frame(time: float, frame: Frame) -> Frame:
    """The frame, if it is one.

    Raises:
        MediaError: its time is no number, or it is not RGB ``uint8[H, W, 3]``.
    """
    check_time("frame", time)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
        raise MediaError(
            f"the frame at {time:.3f} s is {frame.dtype}{list(frame.shape)}, expected RGB "
            "uint8[height, width, 3]: convert it before it enters the stream"
        )
    return frame


def checked_samples(time: float, samples: Samples) -> Samples:
    """The samples, if they are some.

    Raises:
        MediaError: their time is no number, or they are not mono ``float32``.
    """
    check_time("sound", time)
    if samples.dtype != np.float32 or samples.ndim != 1:
        raise MediaError(
            f"the sound at {time:.3f} s is {samples.dtype}{list(samples.shape)}, expected mono "
            "float32[samples] at 16 kHz: convert it before it enters the stream"
        )
    return samples


def check_time(what: str, time: float) -> None:
    """Refuse what is no time.

    Raises:
        MediaError: infinite, or no number.
    """
    if not math.isfinite(time):
        raise MediaError(f"a {what} came with time {time}, expected seconds of the stream")
