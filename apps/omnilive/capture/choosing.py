"""From what a person writes to a camera or a microphone."""

from __future__ import annotations

import re
from pathlib import Path

from omni_core.errors import MediaError
from omnilive.capture.camera import Camera, PictureSource
from omnilive.capture.cameras import Found, found_cameras
from omnilive.capture.files import PictureFile, SoundFile
from omnilive.capture.microphone import Microphone, SoundSource

_SECRET = re.compile(r"(?<=://)[^/@]*@")
_VIDEO = re.compile(r"/dev/video(\d+)")


def choose_camera(wanted: str) -> PictureSource | None:
    """A camera by number, device path, name or a part of it, address, or file; None for ``none``.

    ``default`` is the first one. Nothing is opened yet.

    Raises:
        MediaError: there is none such, or OpenCV is missing.
    """
    if wanted == "none":
        return None
    if "://" in wanted:
        # Addresses carry passwords, and names go to screens and recordings.
        return Camera(wanted, _SECRET.sub("", wanted))
    cameras = found_cameras()
    if wanted == "default":
        first = cameras[0] if cameras else Found(0, "0")
        return Camera(first.index, first.name)
    device = _VIDEO.fullmatch(wanted)
    if wanted.isdecimal() or device:
        index = int(device[1] if device else wanted)
        name = next((one.name for one in cameras if one.index == index), wanted)
        return Camera(index, name)
    if wanted.startswith("/dev/"):
        return Camera(wanted, wanted)
    if Path(wanted).is_file():
        return PictureFile(Path(wanted))
    matches = [one for one in cameras if wanted.lower() in one.name.lower()]
    matches = [one for one in matches if one.name.lower() == wanted.lower()] or matches
    if len(matches) != 1:
        names = ", ".join(f"{one.index} {one.name}" for one in matches or cameras) or "none found"
        what = "several cameras are" if matches else "no camera or file is"
        raise MediaError(f"{what} called {wanted!r}; choose by number: {names}")
    return Camera(matches[0].index, matches[0].name)


def choose_microphone(wanted: str) -> SoundSource | None:
    """A microphone by number, by name or a part of it, or a file; None for ``none``.

    ``default`` is the system's choice. Nothing is opened yet.

    Raises:
        MediaError: there is none such, or the sound library is missing.
    """
    if wanted == "none":
        return None
    if Path(wanted).is_file() and not wanted.isdecimal():
        return SoundFile(Path(wanted))
    return Microphone(wanted)
