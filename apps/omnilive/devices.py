"""``omnilive devices``: which cameras and microphones can be chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator

from omni_core.errors import MediaError
from omnilive.capture.clock import SystemClock
from omnilive.capture.levels import SILENT
from omnilive.capture.listing import CameraEntry, MicrophoneEntry, cameras, microphones
from omnilive.capture.soundservers import no_microphones
from omnilive.terminal import put, say

_METER = 10
_FAINTEST = -60.0


def run(*, jsonl: bool = False) -> bool:
    """List them on stdout, the defaults marked with a star; a line on stderr for what is missing.

    Returns whether anything was found that works.
    """
    works = False
    for kind, listed in (("camera", cameras), ("microphone", _microphones)):
        found = False
        try:
            for entry in listed():
                if not found and not jsonl:
                    put(f"{kind}s\n")
                put(json.dumps(entry.row()) + "\n" if jsonl else f"{_line(entry)}\n")
                found = True
                works |= entry.problem is None
        except MediaError as error:
            say(str(error))
            continue
        if not found:
            say(str(no_microphones()) if kind == "microphone" else _NO_CAMERA)
    if works and not jsonl:
        put(
            "\n* is taken where nothing else is said. Choose by number or by a part of the name:\n"
            "omnilive live --camera 0 --mic 1; none goes without.\n"
        )
    return works


def _microphones() -> Iterator[MicrophoneEntry]:
    return microphones(SystemClock())


def _line(entry: CameraEntry | MicrophoneEntry) -> str:
    mark = "*" if entry.default else " "
    about = entry.problem or (_picture(entry) if isinstance(entry, CameraEntry) else _sound(entry))
    return f" {mark} {entry.index:2d}  {entry.name or 'unnamed':<32}  {about}"


def _picture(entry: CameraEntry) -> str:
    rate = f" at {entry.fps:g} fps" if entry.fps > 0 else ""
    return f"{entry.width}x{entry.height}{rate}"


def _sound(entry: MicrophoneEntry) -> str:
    channels = "1 channel" if entry.channels == 1 else f"{entry.channels} channels"
    level = SILENT if entry.level_db is None else entry.level_db
    filled = round(_METER * max(0.0, 1 - level / _FAINTEST))
    said = f"{level:.0f} dB" if level > SILENT else "silence: muted, or not permitted?"
    meter = "#" * filled + "." * (_METER - filled)
    return f"{entry.rate} Hz, {channels}  [{meter}] {said}"


_NO_CAMERA = (
    "no camera was found: plug one in, allow this program to use it, or give an address or a file "
    "to --camera"
)
