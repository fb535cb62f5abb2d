"""A microphone: blocks from the sound library's callback, laid on a line that keeps the clock."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE
from omnilive.capture.clock import Steps, Worker
from omnilive.capture.line import SoundLine
from omnilive.capture.permissions import unmute
from omnilive.capture.reopening import Host, Reopener, one_line
from omnilive.capture.resampling import Resampler, Samples
from omnilive.capture.sounddevices import Input, find_input, look_again, sound_library

BLOCK = 0.02
"""Seconds of sound in a block."""
QUEUE = 250
"""Blocks that may wait: 5 seconds."""
PATIENCE = 0.75
"""Seconds that sound may be late before silence takes its place."""
STALL = 2.0
"""Seconds without sound, silence or not, after which a microphone counts as stalled."""
MUTE = 5.0
"""Seconds of nothing but zeros after which somebody is told."""
_LOOK = 0.1
_PACE = 3.0
_OFF_PACE = 0.04
_LONGEST_DELAY = 2.0


class SoundSource(Protocol):
    """Where a stream's sound comes from."""

    name: str
    """For people."""
    filled: int
    """Samples of silence put in for sound that did not come."""
    ended: bool
    """Whether no more will come."""

    @property
    def state(self) -> str:
        """``opening``, ``on``, ``silent``, ``lost`` or ``ended``."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it does not work, if it does not."""
        ...

    def open(self, host: Host) -> None:
        """Get it going."""
        ...

    def begin(self, zero: float) -> None:
        """The stream's second 0 is at this steady time; forget what came before."""
        ...

    def take(self, now: float, patience: float) -> Samples:
        """What the stream's sound goes on by, at a second of it: ``float32[n]`` at 16 kHz.

        The samples of all calls follow each other from second 0 without a gap; where none came for
        ``patience`` seconds there is silence.
        """
        ...

    def close(self) -> list[Worker]:
        """Ask it to end; returns who must still do so."""
        ...


class Microphone:
    """A microphone of the sound library, kept open.

    Args:
        wanted: as for :func:`omnilive.capture.sounddevices.find_input`.

    Attributes:
        broken: samples that were no numbers, or infinite, and were taken for silence.

    Raises:
        MediaError: no sound library, or no such microphone.
    """

    ended = False

    def __init__(self, wanted: str) -> None:
        found = find_input(sound_library(), wanted)
        self.name = found.name
        # By name from now on: numbers change when something is unplugged.
        self._wanted = wanted if wanted == "default" else found.name
        self._first: Input | None = found
        self._line = SoundLine()
        self._zero = 0.0
        self._zeros = self.broken = 0
        self._silent = self._told_silent = self._told_broken = False
        self._reopener: Reopener[_Opening] | None = None

    @property
    def filled(self) -> int:
        """Samples of silence put in for sound that did not come."""
        return self._line.filled

    @property
    def state(self) -> str:
        """``opening``, ``on``, ``silent`` or ``lost``."""
        state = "opening" if self._reopener is None else self._reopener.state
        return "silent" if state == "on" and self._silent else state

    @property
    def failure(self) -> str | None:
        """Why it does not work."""
        return None if self._reopener is None else self._reopener.failure

    def open(self, host: Host) -> None:
        """Start opening it."""
        self._host = host
        self._reopener = Reopener(f"microphone {self.name}", host, self._start, STALL)
        self._reopener.tend()

    def begin(self, zero: float) -> None:
        """Forget what came so far."""
        self._zero, self._line = zero, SoundLine()
        if self._reopener is not None and self._reopener.opening is not None:
            self._reopener.opening.blocks.clear()

    def take(self, now: float, patience: float = PATIENCE) -> Samples:
        """What has come since, in step with the clock."""
        assert self._reopener is not None, "not opened"
        opening = self._reopener.tend()
        parts = []
        while opening is not None and opening.blocks:
            parts.append(self._laid(opening, opening.blocks.popleft()))
        works = opening is not None and opening.heard is not None
        parts.append(self._line.fill(now - (patience if works else 0.0)))
        if opening is not None and (failure := opening.off_pace()) is not None:
            self._reopener.fail(failure)
        return np.concatenate(parts)

    def close(self) -> list[Worker]:
        """Close the device."""
        if self._reopener is None:
            return []
        self._reopener.close()
        return self._reopener.workers()

    def _start(self) -> _Opening:
        self._zeros, self._silent = 0, False
        self._line.begin()
        found, self._first = self._first, None
        # The library may not start again while a stream of it is still being closed.
        look = found is None and self._reopener is not None and not self._reopener.workers()
        return _Opening(self._host, self._wanted, found, look)

    def _laid(self, opening: _Opening, block: _Block) -> Samples:
        count, taken, arrived, lost, data = block
        rate = opening.rate
        opening.pace(arrived, count, lost)
        broken = opening.resampler.broken
        samples = opening.resampler.feed(data)
        self.broken += opening.resampler.broken - broken
        self._check(opening, data)
        return self._line.lay(
            count / rate, len(data) / rate, taken - self._zero, arrived - self._zero, samples, lost
        )

    def _check(self, opening: _Opening, data: Any) -> None:
        if self.broken and not self._told_broken:
            self._told_broken = True
            self._host.warn(
                f"microphone {self.name} gives samples that are no numbers; taken for silence"
            )
        self._zeros = 0 if data.any() else self._zeros + len(data)
        self._silent = self._zeros >= MUTE * opening.rate
        if self._silent and not self._told_silent:
            self._told_silent = True
            self._host.warn(f"microphone {self.name} gives silence: {unmute()}")


_Block = tuple[int, float, float, bool, Any]
"""The device's count at the first sample, when that was taken and when it came, whether sound
before it was lost, and the samples."""


class _Opening:
    """A stream of the sound library, from being opened to being closed, on a thread of its own."""

    def __init__(self, host: Host, wanted: str, found: Input | None, look: bool) -> None:
        self.heard: float | None = None
        self.failure: str | None = None
        self.blocks: deque[_Block] = deque(maxlen=QUEUE)
        self.rate = SAMPLE_RATE
        self._count = 0
        self._time = host.time
        self._paced: tuple[float, int] | None = None
        self._off = 0.0
        self._lossy = False
        self._wrong: float | None = None
        self.worker = host.clock.run("microphone", self._work(wanted, found, look))

    def _work(self, wanted: str, found: Input | None, look: bool) -> Steps:
        try:
            library = sound_library()
            if look:
                look_again(library)
            found = found or find_input(library, wanted)
            self.rate = found.rate
            self.resampler = Resampler(found.rate)
            stream = _opened(library, found, self._callback)
        except MediaError as error:
            self.failure = f"is not there: {error}"
            return
        except Exception as error:
            self.failure = f"cannot be opened: {one_line(error)}"
            return
        try:
            stream.start()
            while stream.active:
                yield _LOOK
            self.failure = "has stopped"
        except Exception as error:
            self.failure = f"has failed: {one_line(error)}"
        finally:
            # What is left of a device that was pulled out may fail to close.
            with suppress(Exception):
                stream.abort()
            with suppress(Exception):
                stream.close()

    def _callback(self, data: Any, frames: int, info: Any, status: Any) -> None:
        now = self._time()
        delay = info.currentTime - info.inputBufferAdcTime
        if not frames / self.rate <= delay <= _LONGEST_DELAY:
            delay = frames / self.rate
        lost = bool(status.input_overflow)
        self.blocks.append((self._count, now - delay, now, lost, data.copy()))
        self._count += frames
        self.heard = now

    def pace(self, arrived: float, count: int, lost: bool) -> None:
        """Note how fast samples come, by the clock."""
        self._lossy |= lost
        if self._paced is None:
            self._paced = (arrived, count)
        elif arrived - self._paced[0] >= _PACE:
            since, first = self._paced
            off = (count - first) / (self.rate * (arrived - since)) - 1
            # What is lost, or late and then made up for, is no other rate.
            same = off * self._off > 0 and min(abs(off), abs(self._off)) > _OFF_PACE
            self._wrong = self.rate * (1 + off) if same and not self._lossy else None
            self._paced, self._off, self._lossy = (arrived, count), off, False

    def off_pace(self) -> str | None:
        """What is wrong with the rate, if it is not the one that the device was opened with."""
        if self._wrong is None:
            return None
        return f"gives {self._wrong:.0f} samples a second in place of {self.rate}"


def _opened(library: Any, found: Input, callback: Any) -> Any:
    """A stream with few channels, or with all where the device will have no other number."""
    settings = {
        "device": found.index,
        "samplerate": found.rate,
        "dtype": "float32",
        "blocksize": round(found.rate * BLOCK),
        "callback": callback,
    }
    try:
        return library.InputStream(channels=found.channels, **settings)
    except Exception:
        if found.channels == found.inputs:
            raise
    return library.InputStream(channels=found.inputs, **settings)
