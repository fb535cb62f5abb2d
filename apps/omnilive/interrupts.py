"""Ctrl-C: the first ends the run in good order, the second at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

_NOTICE = b"\nomnilive: ending after this step; Ctrl-C again ends at once\n"
_PEACE = 1.0
_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, where no stream could be ended in good order."""


@dataclass
class Ending:
    """How a block ended: ``code`` is 143 where it was told to by SIGTERM, else 0."""

    code: int = 0


@contextmanager
def gently(stop: Callable[[], None]) -> Iterator[Ending]:
    """Call ``stop`` at the first Ctrl-C inside the block; the next raises KeyboardInterrupt.

    SIGTERM calls it too, and sets the exit code. Outside of the main thread, where Python delivers
    no signals, nothing changes.
    """
    count, ending = 0, Ending()

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        ending.code = _TERMINATED
        stop()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        # Not print: the signal may have come in the middle of one.
        with suppress(OSError):
            os.write(2, _NOTICE)
        stop()

    with _handling(handle), _handling(terminate, signal.SIGTERM):
        yield ending


@contextmanager
def at_once() -> Iterator[None]:
    """Raise KeyboardInterrupt at a Ctrl-C, Terminated at SIGTERM; leave the cleaning up in peace.

    Those of the second after it are taken for the same one.
    """
    last = float("-inf")

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _PEACE:
            last = now
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    with _handling(handle), _handling(handle, signal.SIGTERM):
        yield


@contextmanager
def _handling(
    handle: Callable[[int, FrameType | None], None], number: int = signal.SIGINT
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)
