"""Pictures and sound of a script's units: the definition that other renderers are compared with."""

from __future__ import annotations

from streamworld.render_frames import frames
from streamworld.render_sounds import sounds

__all__ = ["frames", "sounds"]
