"""Which cameras there are, as far as the platform tells."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SYSFS = Path("/sys/class/video4linux")
_PROFILER = ["/usr/sbin/system_profiler", "-json", "SPCameraDataType"]
_PATIENCE = 10.0


@dataclass(frozen=True)
class Found:
    """A camera by OpenCV's number, and its name."""

    index: int
    name: str


def found_cameras() -> list[Found]:
    """Cameras by name, none of them opened; empty where the platform says nothing."""
    if sys.platform == "linux":
        return _linux(_SYSFS)
    return _macos() if sys.platform == "darwin" else []


def _linux(folder: Path) -> list[Found]:
    found = []
    for entry in folder.glob("video*"):
        with suppress(OSError, ValueError):
            # Nodes after a camera's first one give no pictures, but what the camera says of them.
            if int((entry / "index").read_text()) == 0:
                name = (entry / "name").read_text().strip()
                found.append(Found(int(entry.name.removeprefix("video")), name))
    return sorted(found, key=lambda one: one.index)


def _macos() -> list[Found]:
    with suppress(OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        done = subprocess.run(_PROFILER, capture_output=True, timeout=_PATIENCE, check=True)
        cameras = json.loads(done.stdout)["SPCameraDataType"]
        # OpenCV numbers them by their unique identifiers, as AVFoundation's sorted list has it.
        cameras.sort(key=lambda one: one.get("spcamera_unique-id", ""))
        return [Found(number, one["_name"]) for number, one in enumerate(cameras)]
    return []
