"""What libraries write to stderr while the screen has the terminal."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_STDERR = 2
_LOOK = 0.2
_LONGEST = 2000
_AFTER = 32


class Aside:
    """Takes stderr away from the terminal, and hands each line to ``tell``.

    Sound and camera libraries write there past Python, and would tear the screen. Nothing is done
    where stderr is no terminal.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._kept = self._source = -1
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="stderr", daemon=True)

    def start(self) -> None:
        """Begin, if stderr is a terminal."""
        if sys.stderr is None or not os.isatty(_STDERR):
            return
        sys.stderr.flush()
        self._kept = os.dup(_STDERR)
        self._source, target = os.pipe()
        os.dup2(target, _STDERR)
        os.close(target)
        self._thread.start()

    def stop(self) -> None:
        """Give stderr back."""
        if self._kept < 0:
            return
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(self._kept, _STDERR)
        os.close(self._kept)
        self._kept = -1
        self._stopped.set()
        self._thread.join(1)

    def _read(self) -> None:
        rest, left = b"", _AFTER
        while left:
            # A child may hold the other end for longer.
            left -= self._stopped.is_set()
            if select.select([self._source], [], [], _LOOK)[0]:
                data = os.read(self._source, 4096)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:_LONGEST]
                for line in lines:
                    self._pass_on(line)
            elif self._stopped.is_set():
                break
        self._pass_on(rest)
        os.close(self._source)

    def _pass_on(self, line: bytes) -> None:
        text = line[:_LONGEST].decode(errors="replace").strip()
        if text:
            self._tell(text)
