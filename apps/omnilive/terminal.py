"""Stdout and stderr: every word of the command, for people or for programs, leaves through here."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import sys
import threading
from typing import TextIO

from omni_core.errors import OmniError

# Control characters but tab and newline; marks that turn the direction of what follows; halves of
# characters, as undecodable bytes of a path or an option become.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class OutputError(OmniError):
    """Stdout is closed, or full."""


def printable(text: str) -> str:
    """Without what would steer the terminal: texts come from models, files and other people."""
    return _STEERING.sub("\ufffd", text)


def say(text: str) -> None:
    """One line for people, on stderr."""
    tell(f"omnilive: {' '.join(text.split())}")


def tell(text: str) -> None:
    """Lines for people, on stderr; where nobody can read them the run goes on without."""
    draw(printable(text))


def draw(text: str) -> None:
    """As :func:`tell`, for lines of our own making that steer the terminal: colours.

    A terminal that is gone is a hang-up.
    """
    if sys.stderr is not None:
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError as error:
            if _gone(sys.stderr, error):
                abandon(sys.stderr)
                hang_up()


def put(text: str) -> None:
    """Write to stdout at once; characters that its encoding lacks become question marks.

    A terminal that is gone is a hang-up.

    Raises:
        BrokenPipeError: who read it has left.
        OutputError: it cannot be written.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(printable(text).encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if _gone(sys.stdout, error):
            abandon()
            if hang_up():
                return
        raise OutputError(
            f"stdout cannot be written: {error.strerror}; send it elsewhere, or make room"
        ) from None


def claim() -> None:
    """Look at both before the run: files opened later must not take the place of a closed one.

    Raises:
        OutputError: stdout is closed.
    """
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = os.fdopen(2, "w")
    if sys.stdout is None:
        raise OutputError("stdout is closed; send it somewhere, if only to /dev/null")


def abandon(stream: TextIO | None = None) -> None:
    """Let what stdout still holds go nowhere, or Python would stumble over it when it ends.

    Or what another stream holds.
    """
    stream = stream or sys.stdout
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def hang_up() -> bool:
    """End as SIGHUP would, which may come late or never: the terminal is gone.

    False where nobody handles it. May be called from any thread.
    """
    number, main = getattr(signal, "SIGHUP", None), threading.main_thread().ident
    if number is None or main is None:
        return False
    if signal.getsignal(number) in (signal.SIG_IGN, signal.SIG_DFL):
        return False
    # Handlers run there; it may be waiting for something.
    signal.pthread_kill(main, number)
    return True


def _gone(stream: TextIO, error: OSError) -> bool:
    """Whether it was a terminal: a file on a broken disk fails in the same way."""
    return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
