"""Ctrl-C: the first ends the run in good order, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_NOTICE = b"\nomnilive: ending after this step; Ctrl-C again ends at once\n"


@contextmanager
def gently(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first Ctrl-C inside the block; the next raises KeyboardInterrupt.

    Outside of the main thread, where Python delivers no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        # Not print: the signal may have come in the middle of one.
        os.write(2, _NOTICE)
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
