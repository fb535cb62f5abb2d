"""Cameras and microphones as one stream of units.

::

    camera = choose_camera("0")
    microphone = choose_microphone("default")
    framer = live_framer(model.frontend, camera, microphone)
    with Capture(camera, microphone, framer, warn=print) as capture:
        capture.open()
        for unit in capture.units():
            session.append(unit)
"""

from __future__ import annotations

from omnilive.capture.choosing import choose_camera, choose_microphone
from omnilive.capture.clock import Clock, SystemClock, VirtualClock
from omnilive.capture.framers import live_framer
from omnilive.capture.snapshot import Snapshot
from omnilive.capture.source import Capture

__all__ = [
    "Capture",
    "Clock",
    "Snapshot",
    "SystemClock",
    "VirtualClock",
    "choose_camera",
    "choose_microphone",
    "live_framer",
]
