"""The keyboard, read on a thread of its own."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from omnilive.screen.decoding import Decoder, Key

_LOOK = 0.2
_ESCAPE_WAIT = 0.05
_CHUNK = 4096


class Keyboard:
    """Hands keys on as they are pressed, until stopped or the terminal has gone.

    Args:
        descriptor: the terminal, already in a mode that hands keys on one by one.
        press: called with each key, on the keyboard's thread.
        failed: called with what ``press`` raised; the thread ends.
        active: whether the terminal is ours now; while it is not, nothing is read.
        encoding: of the terminal.
    """

    def __init__(
        self,
        descriptor: int,
        press: Callable[[Key], None],
        failed: Callable[[BaseException], None],
        active: Callable[[], bool] = lambda: True,
        encoding: str = "utf-8",
    ) -> None:
        self._descriptor, self._press, self._failed = descriptor, press, failed
        self._active, self._decoder = active, Decoder(encoding)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="keys", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no further. May be called from any thread, and before :meth:`start`."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1)

    def _read(self) -> None:
        try:
            while not self._stopped.is_set():
                if not self._active():
                    self._stopped.wait(_LOOK)
                    continue
                keys = self._next()
                if keys is None:
                    return
                for key in keys:
                    if not self._stopped.is_set():
                        self._press(key)
        except BaseException as error:
            self._failed(error)

    def _next(self) -> list[Key] | None:
        wait = _ESCAPE_WAIT if self._decoder.waiting else _LOOK
        try:
            ready, _, _ = select.select([self._descriptor], [], [], wait)
            # Another program may have the terminal by now; reading would stop this one.
            if not ready or not self._active():
                return self._decoder.flush()
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return []
        except (OSError, ValueError):
            return None
        return self._decoder.feed(data) if data else None
