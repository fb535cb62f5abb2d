"""Ctrl-C: the first ends the run in good order, the second at once. Other signals that end it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from omnilive.terminal import abandon

_NOTICE = b"\nomnilive: ending after this step; Ctrl-C again ends at once\n"
_PEACE = 1.0
# The second is that of a terminal that is closed, and no signal everywhere.
_TOLD = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

Handler = Callable[[int, FrameType | None], None]


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, where no stream could be ended in good order: ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@dataclass
class Ending:
    """How a block ended: ``code`` is 143 where SIGTERM told it to, 129 where SIGHUP did, else 0."""

    code: int = 0


@contextmanager
def gently(stop: Callable[[], None]) -> Iterator[Ending]:
    """Call ``stop`` at the first Ctrl-C inside the block; the next raises KeyboardInterrupt.

    SIGTERM and SIGHUP call it too, and set the exit code; who reads the output may then have gone
    as well. Outside of the main thread, where Python delivers no signals, nothing changes.
    """
    count, ending = 0, Ending()

    def end(number: int, _frame: FrameType | None) -> None:
        ending.code = 128 + number
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

    with _handling(handle, signal.SIGINT), _handling(end, *_TOLD):
        try:
            yield ending
        except BrokenPipeError:
            if not ending.code:
                raise
            abandon()


@contextmanager
def at_once() -> Iterator[None]:
    """Raise KeyboardInterrupt at a Ctrl-C, Terminated at SIGTERM or SIGHUP.

    The cleaning up is left in peace: those of the second after it are taken for the same one.
    """
    last = float("-inf")

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _PEACE:
            last = now
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    with _handling(handle, signal.SIGINT, *_TOLD):
        yield


@contextmanager
def put_off() -> Iterator[None]:
    """Have the signals that would end the block come after it."""
    came: list[int] = []
    try:
        with _handling(lambda number, _: came.append(number), signal.SIGINT, *_TOLD):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextmanager
def _handling(handle: Handler, *numbers: int) -> Iterator[None]:
    with ExitStack() as after:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                before = signal.getsignal(number)
                # What nohup has had ignored stays so.
                if number == signal.SIGINT or before != signal.SIG_IGN:
                    after.callback(signal.signal, number, before)
                    signal.signal(number, handle)
        yield
