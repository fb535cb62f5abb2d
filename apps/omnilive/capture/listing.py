"""What cameras and microphones there are, each tried for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE
from omnilive.capture.camera import open_capture, opencv, usable
from omnilive.capture.cameras import Found, found_cameras
from omnilive.capture.clock import Clock, SteadyTime
from omnilive.capture.levels import decibels
from omnilive.capture.microphone import Microphone
from omnilive.capture.reopening import Host, one_line
from omnilive.capture.sounddevices import Input, inputs, sound_library

LISTEN = 1.0
"""Seconds over which a microphone's level is taken."""
_PATIENCE = 3.0
_UNNAMED = 4
_READS = 30


@dataclass(frozen=True)
class CameraEntry:
    """A camera: pixels and frames a second as it states them, or what is wrong with it."""

    index: int
    name: str
    default: bool
    width: int = 0
    height: int = 0
    fps: float = 0.0
    problem: str | None = None

    def row(self) -> dict[str, Any]:
        """For a program."""
        return {"device": "camera", **asdict(self)}


@dataclass(frozen=True)
class MicrophoneEntry:
    """A microphone: its form, and its loudness over a second, or what is wrong with it."""

    index: int
    name: str
    default: bool
    rate: int
    channels: int
    level_db: float | None = None
    problem: str | None = None

    def row(self) -> dict[str, Any]:
        """For a program."""
        return {"device": "microphone", **asdict(self)}


def cameras() -> Iterator[CameraEntry]:
    """Each camera, opened for a frame.

    Raises:
        MediaError: OpenCV is missing.
    """
    opencv()
    named = found_cameras()
    # Where the platform names none, the first few numbers are tried.
    tried = named or [Found(index, "") for index in range(_UNNAMED)]
    default = True
    for found in tried:
        entry = _camera(found, default)
        if named or entry.problem is None:
            yield entry
            default = False


def microphones(clock: Clock) -> Iterator[MicrophoneEntry]:
    """Each microphone, listened to for a second.

    Raises:
        MediaError: the sound library is missing or does not answer.
    """
    library = sound_library()
    for found in inputs(library):
        stated = round(library.query_devices(found.index)["default_samplerate"])
        level, problem = _listen(found, clock)
        yield MicrophoneEntry(
            found.index, found.name, found.default, stated, found.inputs, level, problem
        )


def _camera(found: Found, default: bool) -> CameraEntry:
    cv2 = opencv()
    try:
        capture = open_capture(found.index)
    except Exception as error:
        problem = one_line(error)
        return CameraEntry(found.index, found.name, default, problem=problem)
    try:
        # Some give a few empty frames at first.
        frames = (usable(*capture.read()) for _ in range(_READS))
        frame = next((one for one in frames if one is not None), None)
        fps = float(capture.get(cv2.CAP_PROP_FPS))
    except Exception as error:
        return CameraEntry(found.index, found.name, default, problem=one_line(error))
    finally:
        capture.release()
    if frame is None:
        return CameraEntry(found.index, found.name, default, problem="gives no frames")
    height, width = frame.shape[:2]
    return CameraEntry(found.index, found.name, default, width, height, fps)


def _listen(found: Input, clock: Clock) -> tuple[float | None, str | None]:
    time = SteadyTime(clock)
    try:
        microphone = Microphone(str(found.index))
    except MediaError as error:
        return None, str(error)
    microphone.open(Host(clock, time.now, lambda _: None))
    heard: list[np.ndarray] = []
    try:
        began = until = time.now()
        while microphone.failure is None and time.now() < until + LISTEN:
            if microphone.state == "opening":
                until = time.now()
                microphone.begin(until)
                if until - began > _PATIENCE:
                    return None, "gives nothing"
            heard.append(microphone.take(time.now() - until))
            clock.wait(0.05)
    finally:
        for worker in microphone.close():
            worker.join(1.0)
    if microphone.failure is not None:
        return None, microphone.failure
    return decibels(np.concatenate(heard)[: round(LISTEN * SAMPLE_RATE)]), None
