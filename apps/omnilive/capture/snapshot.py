"""The state of a live stream's devices, for a screen."""

from __future__ import annotations

from dataclasses import dataclass

from omni_core.frontend.tracks import Frame


@dataclass(frozen=True)
class Snapshot:
    """What a screen shows of the devices.

    Attributes:
        time: seconds of the stream.
        frame: the newest frame, RGB ``uint8[H, W, 3]``; None where there is none of late.
        level_db: loudness of the last tenth of a second, in decibels of full scale.
        camera, microphone: names; empty where there is none.
        camera_state: ``opening``, ``on``, ``off``, ``lost``, ``ended`` or ``none``.
        microphone_state: the same, with ``muted`` for ``off``, and ``silent``.
        dropped_frames, dropped_samples: what no unit brings, for want of time.
        skipped_frames: what a camera sent that was no frame.
        filled_samples: silence in place of sound that did not come.
        waiting: units that are cut and not taken.
        lag: seconds from a unit's end to its being taken.
    """

    time: float
    frame: Frame | None
    level_db: float
    camera: str
    camera_state: str
    microphone: str
    microphone_state: str
    dropped_frames: int
    dropped_samples: int
    skipped_frames: int
    filled_samples: int
    waiting: int
    lag: float
