"""Hearing that somebody speaks, when they have ended, and answering aloud."""

from __future__ import annotations

from omni_core.errors import OmniError


class SpeechError(OmniError):
    """Speech cannot be found or spoken on this machine."""
