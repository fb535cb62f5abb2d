"""What to do about a device that gives nothing: the system may not let us have it."""

from __future__ import annotations

import sys


def mend(device: str) -> str:
    """What to do, for a ``camera`` or a ``microphone``: which setting to look at."""
    if sys.platform == "darwin":
        pane = f"System Settings > Privacy & Security > {device.capitalize()}"
        return f"allow the terminal in {pane}, and start the terminal anew"
    group = "video" if device == "camera" else "audio"
    return f"see that no other program holds it, and that you are in the group {group} (`id`)"


def unmute() -> str:
    """What to do about a microphone that gives nothing but zeros."""
    if sys.platform == "darwin":
        return f"unmute it, or {mend('microphone')}"
    return "unmute it and turn it up in the system's sound settings (pavucontrol, alsamixer)"
