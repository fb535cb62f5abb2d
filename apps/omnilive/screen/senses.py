"""What a screen asks of the devices: the newest frame, the level, names and states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_core import UnitMedia

ON, MUTED, OFF, NONE = "on", "muted", "off", "none"
"""States of a device: it works, it is muted or switched off by the user, none was chosen."""
OPENING, SILENT, LOST, ENDED = "opening", "silent", "lost", "ended"
"""More of them: it is about to work, it gives nothing but silence, it went away, it has played to
its end."""
NO_SOUND = -120.0
"""Decibels of no sound at all."""


class Snapshot(Protocol):
    """What the devices gave last. Read from the screen's thread, ten times a second."""

    @property
    def frame(self) -> npt.NDArray[np.uint8] | None:
        """The newest frame, ``uint8[H, W, 3]`` RGB; a new frame is a new array."""
        ...

    @property
    def level_db(self) -> float:
        """Loudness of the last tenth of a second, in decibels of full scale (0 is the most)."""
        ...

    @property
    def camera(self) -> str:
        """The camera's name."""
        ...

    @property
    def camera_state(self) -> str:
        """A state, as named above."""
        ...

    @property
    def microphone(self) -> str:
        """The microphone's name."""
        ...

    @property
    def microphone_state(self) -> str:
        """A state, as named above."""
        ...

    @property
    def dropped_frames(self) -> int | None:
        """Frames lost so far; None leaves it to the ``unit`` events."""
        ...

    @property
    def dropped_samples(self) -> int | None:
        """Samples of sound lost so far; None as above."""
        ...

    @property
    def lag(self) -> float | None:
        """Seconds that the model is behind the devices; None as above."""
        ...


@dataclass(frozen=True)
class Senses:
    """A :class:`Snapshot` of plain values."""

    frame: npt.NDArray[np.uint8] | None = None
    level_db: float = NO_SOUND
    camera: str = ""
    camera_state: str = NONE
    microphone: str = ""
    microphone_state: str = NONE
    dropped_frames: int | None = None
    dropped_samples: int | None = None
    lag: float | None = None


def senses_of(unit: UnitMedia, name: str) -> Senses:
    """What a clip of this name showed and sounded like in a unit, for a run without devices."""
    return Senses(
        frame=unit.frames[-1] if unit.frames else None,
        level_db=NO_SOUND if unit.audio is None else loudness(unit.audio),
        camera=name,
        camera_state=ON if unit.frames else NONE,
        microphone=name,
        microphone_state=NONE if unit.audio is None else ON,
    )


def loudness(samples: npt.NDArray[np.float32]) -> float:
    """The level of ``float32[n]`` in decibels of full scale: the root of the mean square."""
    if not samples.size:
        return NO_SOUND
    power = float(np.mean(np.square(samples, dtype=np.float64)))
    return max(NO_SOUND, 10 * math.log10(power)) if power > 0 else NO_SOUND
