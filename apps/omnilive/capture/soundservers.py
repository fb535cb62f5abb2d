"""Why no microphone is listed: there is none, or the sound server that has it gives none."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_PATIENCE = 0.5
_PORT = 4713
_WITHOUT = "or go on without: --mic none"
# A server that is started by hand, and those that the session's manager starts.
_STARTS = {
    "pipewire": "systemctl --user restart pipewire pipewire-pulse",
    "pulseaudio": "pulseaudio --start",
}


@dataclass(frozen=True)
class Absence:
    """Microphones that are not there: what was found, and what to do."""

    found: str
    mend: str

    def __str__(self) -> str:
        """Both in a line."""
        return f"{self.found}: {self.mend}"


NONE = Absence(
    "no microphone was found",
    f"plug one in, allow this program to use it, give a file to --mic, {_WITHOUT}",
)


def no_microphones() -> Absence:
    """What to tell where the sound library lists no microphone."""
    return silent_server() or NONE


def silent_server() -> Absence | None:
    """The same where there is a sound server, on Linux: PulseAudio, or PipeWire in its place."""
    if sys.platform != "linux":
        return None
    named = os.environ.get("PULSE_SERVER", "").split()
    places = named or _usual()
    programs = [name for name in _STARTS if shutil.which(name) is not None]
    if not (named or programs or any(_exists(place) for place in places)):
        return None
    failures = [_failure(place) for place in places]
    if None in failures:
        answering = places[failures.index(None)]
        return Absence(
            f"the sound server at {answering} answers, but no microphone is seen through it",
            "plug one in, or open ALSA's way to the server (Debian, Ubuntu: apt install "
            f"libasound2-plugins), {_WITHOUT}",
        )
    start = "or mend PULSE_SERVER" if named else f"({_STARTS[(programs or ['pulseaudio'])[0]]})"
    return Absence(
        f"the sound server does not answer ({places[0]}: {failures[0]}), so no microphone is seen",
        f"start it {start}, {_WITHOUT}",
    )


def _usual() -> list[str]:
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    pulse = Path(os.environ.get("PULSE_RUNTIME_PATH") or runtime / "pulse")
    return [str(pulse / "native"), str(runtime / "pipewire-0")]


def _exists(place: str) -> bool:
    try:
        return Path(place).exists()
    except OSError:  # another user's folder
        return False


def _failure(place: str) -> str | None:
    """Why nobody answers at an address as PULSE_SERVER has it; None if somebody does."""
    address = re.sub(r"^\{[^}]*\}", "", place).removeprefix("unix:")
    try:
        if address.startswith("/"):
            with socket.socket(socket.AF_UNIX) as server:
                server.settimeout(_PATIENCE)
                server.connect(address)
        else:
            parts = urlsplit("//" + re.sub(r"^tcp[46]?:", "", address))
            port = _PORT if parts.port is None else parts.port
            socket.create_connection((parts.hostname or "", port), _PATIENCE).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
