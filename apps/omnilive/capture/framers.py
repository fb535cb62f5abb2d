"""How much of a live stream waits for a model that is late."""

from __future__ import annotations

from omni_core.errors import MediaError
from omni_core.frontend.base import Frontend
from omni_core.frontend.framing import UnitFramer
from omnilive.capture.camera import PictureSource
from omnilive.capture.microphone import SoundSource

WAITING = 2
"""Units that wait with their frames for a model that is late."""
WAITING_SOUND = 4
"""Units that wait at all. More would have a model that is fast again answer to the past."""


def live_framer(
    frontend: Frontend,
    camera: PictureSource | None,
    microphone: SoundSource | None,
    start: float = 0.0,
) -> UnitFramer:
    """A framer for a model's units, from second ``start`` on, that keeps little waiting.

    Raises:
        MediaError: neither camera nor microphone.
    """
    if camera is None and microphone is None:
        raise MediaError("neither camera nor microphone: choose one of them, or --source CLIP")
    return UnitFramer(
        frontend.seconds,
        frontend.fps,
        picture=camera is not None,
        sound=microphone is not None,
        start=start,
        waiting=WAITING,
        waiting_sound=WAITING_SOUND,
    )
