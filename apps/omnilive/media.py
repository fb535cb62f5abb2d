"""Timed pieces of picture and sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.frontend.base import SAMPLE_RATE

_SILENCE = SAMPLE_RATE // 10


@dataclass(frozen=True)
class Picture:
    """One frame: seconds of the stream, ``uint8[H, W, 3]`` RGB, upright, and seconds it stays."""

    time: float
    rgb: npt.NDArray[np.uint8]
    length: float

    @property
    def ready(self) -> float:
        """When a camera would have handed it over."""
        return self.time

    @property
    def stop(self) -> float:
        """When the next one is due."""
        return self.time + self.length


@dataclass(frozen=True)
class Sound:
    """A run of sound: seconds of its first sample, and ``float32[samples]`` at 16 kHz."""

    time: float
    samples: npt.NDArray[np.float32]

    @property
    def ready(self) -> float:
        """When a microphone would have handed it over."""
        return self.time + self.samples.size / SAMPLE_RATE

    @property
    def stop(self) -> float:
        """When it ends."""
        return self.ready


Media = Picture | Sound


def silence(start: float, stop: float) -> Iterator[Sound]:
    """Silence between two seconds, in pieces of 0.1 s."""
    done, end = round(start * SAMPLE_RATE), round(stop * SAMPLE_RATE)
    while done < end:
        count = min(_SILENCE, end - done)
        yield Sound(done / SAMPLE_RATE, np.zeros(count, np.float32))
        done += count
