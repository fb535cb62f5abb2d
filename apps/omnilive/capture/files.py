"""Files in the place of a camera or a microphone, played in real time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE
from omnilive import decoding
from omnilive.capture.camera import Timed
from omnilive.capture.clock import Steps, Worker
from omnilive.capture.reopening import Host, one_line
from omnilive.capture.resampling import Samples
from omnilive.clip import Clip, probe
from omnilive.media import Sound

_AHEAD = 0.2


class SoundFile:
    """A file's sound in the place of a microphone's.

    Raises:
        MediaError: not there, not readable, or without sound.
    """

    def __init__(self, path: Path) -> None:
        self._clip = _clip(path, "sound")
        self.name = path.name
        self.filled = self._reach = 0
        self.ended = False
        self.failure: str | None = None
        self._sounds: Iterator[Sound] | None = None
        self._rest = np.zeros(0, np.float32)

    @property
    def state(self) -> str:
        """``opening``, ``on`` or ``ended``."""
        if self.ended:
            return "ended"
        return "opening" if self._sounds is None else "on"

    def open(self, host: Host) -> None:
        """Open the file; it does not play yet."""
        clip = self._clip
        self._sounds = decoding.sounds(clip.path, clip.origin, clip.sound_end, host.warn)

    def begin(self, zero: float) -> None:
        """Play."""

    def take(self, now: float, patience: float = 0.0) -> Samples:
        """What is played up to now; silence after the file's end."""
        wanted = max(0, round(now * SAMPLE_RATE) - self._reach)
        while self._rest.size < wanted and not self.ended:
            assert self._sounds is not None, "not opened"
            sound = next(self._sounds, None)
            self.ended = sound is None
            if sound is not None:
                self._rest = np.concatenate([self._rest, sound.samples])
        samples, self._rest = self._rest[:wanted], self._rest[wanted:]
        self._reach += wanted
        return np.pad(samples, (0, wanted - samples.size))

    def close(self) -> list[Worker]:
        """Nothing runs."""
        return []


class PictureFile:
    """A file's picture in the place of a camera's, decoded on a thread of its own.

    Raises:
        MediaError: not there, not readable, or without picture.
    """

    skipped = 0

    def __init__(self, path: Path) -> None:
        self._clip = _clip(path, "picture")
        self.name = path.name
        self.ended = self._resting = False
        self.failure: str | None = None
        self._newest: Timed | None = None
        self._zero = 0.0
        self._host: Host | None = None
        self._worker: Worker | None = None

    @property
    def state(self) -> str:
        """``opening``, ``on``, ``off`` or ``ended``."""
        if self.ended:
            return "ended"
        if self._resting:
            return "off"
        return "opening" if self._host is None else "on"

    def open(self, host: Host, rate: float) -> None:
        """It plays once the stream begins."""
        self._host = host

    def begin(self, zero: float) -> None:
        """Play."""
        assert self._host is not None, "not opened"
        self._zero = zero
        self._worker = self._host.clock.run("camera file", self._work(self._host))

    def take(self) -> Timed | None:
        """The frame that is shown now, if it was not taken yet."""
        newest, self._newest = self._newest, None
        return None if self._resting else newest

    def rest(self, resting: bool) -> None:
        """Show nothing, while it plays on."""
        self._resting = resting

    def close(self) -> list[Worker]:
        """End the reading."""
        if self._worker is None:
            return []
        self._worker.stop()
        return [self._worker]

    def _work(self, host: Host) -> Steps:
        try:
            for picture in decoding.pictures(self._clip.path, self._clip.origin, host.warn):
                while (early := picture.time - host.time() + self._zero) > 0:
                    yield min(early, _AHEAD)
                self._newest = (picture.time, picture.rgb)
                end = picture.stop
            yield max(0.0, end - host.time() + self._zero)
        except Exception as error:
            self.failure = f"cannot be read on: {one_line(error)}"
            host.warn(f"{self.name} {self.failure}")
        finally:
            self.ended = True


def _clip(path: Path, kind: str) -> Clip:
    clip = probe(path)
    if getattr(clip, kind) is None:
        raise MediaError(f"{path}: no {kind} in it; choose another file")
    return clip
