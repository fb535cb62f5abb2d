"""The sound library: loaded when a microphone is asked for, and kept from writing to the screen."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE
from omnilive.capture.reopening import one_line
from omnilive.capture.soundservers import no_microphones

SERVERS = ("pulse", "pipewire")
"""Sound servers by PortAudio's names: they resample well, so they are asked for 16 kHz mono."""

_handlers: list[Any] = []


@dataclass(frozen=True)
class Input:
    """A microphone as the sound library has it.

    Attributes:
        index: its number there, which changes when devices come and go.
        rate: samples a second to open it with.
        channels: the same of channels.
        inputs: channels that it has.
        default: whether it is the system's choice.
    """

    index: int
    name: str
    rate: int
    channels: int
    inputs: int
    default: bool


def sound_library() -> Any:
    """The ``sounddevice`` module.

    Raises:
        MediaError: it is not installed, or PortAudio is not, or finds no sound system.
    """
    try:
        import sounddevice
    except ImportError:
        raise MediaError(
            "microphones need the sounddevice package, which is not installed: "
            "pip install -e '.[live]' in the checkout, or go on without one: --mic none"
        ) from None
    except OSError:
        raise MediaError(
            "microphones need the PortAudio library, which was not found: install it "
            "(Debian, Ubuntu: apt install libportaudio2), or go on without one: --mic none"
        ) from None
    except Exception as error:
        raise MediaError(
            f"the sound system cannot be used: {one_line(error)}; go on without: --mic none"
        ) from None
    _quieten()
    return sounddevice


def inputs(library: Any) -> list[Input]:
    """All microphones, in the library's order.

    Raises:
        MediaError: the sound system does not answer.
    """
    try:
        devices = list(library.query_devices())
        chosen = _default(library)
    except Exception as error:
        raise MediaError(f"the sound system cannot be asked: {one_line(error)}") from None
    served = any(device["name"] in SERVERS for device in devices)
    found = []
    for index, device in enumerate(devices):
        channels = int(device["max_input_channels"])
        if channels > 0:
            name = str(device["name"])
            server = name in SERVERS or (name == "default" and served)
            rate = SAMPLE_RATE if server else round(device["default_samplerate"])
            used = 1 if server else min(2, channels)
            found.append(Input(index, name, rate, used, channels, index == chosen))
    return found


def find_input(library: Any, wanted: str) -> Input:
    """A microphone by number, by name or by a part of it; ``default`` is the system's choice.

    Raises:
        MediaError: there is none such, or there are several.
    """
    found = inputs(library)
    if wanted == "default":
        matches = [one for one in found if one.default] or found[:1]
    elif wanted.isdecimal():
        matches = [one for one in found if one.index == int(wanted)]
    else:
        low = wanted.lower()
        matches = [one for one in found if one.name.lower() == low][:1]
        matches = matches or [one for one in found if low in one.name.lower()]
    if len(matches) == 1:
        return matches[0]
    if not found:
        raise MediaError(str(no_microphones()))
    names = ", ".join(f"{one.index} {one.name}" for one in matches or found)
    what = "several microphones are" if matches else "no microphone is"
    raise MediaError(f"{what} called {wanted!r}; choose by number: {names}")


def look_again(library: Any) -> None:
    """Have the library notice what was plugged in since: it looks once only, when it starts."""
    # Not for the public, but there is no other way; without it, unplugged devices never come back.
    with suppress(Exception):
        library._terminate()
        library._initialize()


def _default(library: Any) -> int | None:
    try:
        return int(library.query_devices(kind="input")["index"])
    except Exception:
        # None is a default where there are no microphones.
        return None


def _quieten() -> None:
    """ALSA writes what it tries in vain to stderr, into the middle of everything."""
    if _handlers or sys.platform != "linux":
        return
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p
    )
    _handlers.append(kind(lambda *_: None))
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libasound.so.2").snd_lib_error_set_handler(_handlers[0])
