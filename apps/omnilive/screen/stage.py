"""The terminal while the screen has it: taken over, and given back as it was, whatever happens."""

from __future__ import annotations

import atexit
import os
import select
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Other buffer, no cursor, no wrapping at the edge, pasted text marked as such, all blank.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2004h\x1b[2J\x1b[H"
_LEAVE = b"\x1b[?2026l\x1b[0m\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT")
_PATIENCE = 0.5
_CHUNK = 1024


class Stage:
    """A terminal's input and output, by descriptor.

    Attributes:
        wanted: the screen is to have the terminal.
        entered: it has it.
        fresh: what was on the screen is gone; all of it is to be drawn.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        # A signal's handler may find its own thread inside.
        self._lock = threading.RLock()
        self._saved: list[Any] | None = None
        self.wanted = False
        self.entered, self.fresh = False, True

    def enter(self) -> None:
        """Take the terminal over, now or once this process is in the foreground."""
        self.wanted = True
        atexit.register(self.leave)
        self.resume()

    def resume(self) -> None:
        """Take the terminal over if it is wanted, free, and not had."""
        with self._locked():
            if not self.wanted or self.entered or not self._foreground():
                return
            with suppress(termios.error):
                self._saved = self._saved or termios.tcgetattr(self._source)
                termios.tcsetattr(self._source, termios.TCSANOW, _one_by_one(self._saved))
            self.entered, self.fresh = True, True
            with suppress(OSError):
                self._put(_ENTER)

    def again(self) -> None:
        """After a stop that nobody saw coming: the shell has had the terminal meanwhile."""
        with self._locked():
            if self.entered:
                with suppress(OSError):
                    self._put(_LEAVE)
            self.entered = False
        self.resume()

    def leave(self) -> None:
        """Give the terminal back as it was found, even one that is gone."""
        self.wanted = False
        try:
            self._give_back()
        except BaseException:
            # Such as a Ctrl-C in the middle of it.
            self._give_back()
            raise
        atexit.unregister(self.leave)

    def write(self, data: bytes) -> bool:
        """Show something; False if the screen has not got the terminal.

        Raises:
            OSError: the terminal is gone.
        """
        with self._locked() as held:
            if not held or not self.entered:
                return False
            self._put(data)
            return True

    def size(self) -> tuple[int, int]:
        """Columns and lines now."""
        try:
            size = os.get_terminal_size(self._target)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def _give_back(self) -> None:
        with self._locked():
            if not self.entered:
                return
            with suppress(OSError):
                self._put(_LEAVE)
            # From the background, setting the mode would stop this process.
            if self._saved is not None and self._foreground():
                with suppress(termios.error):
                    termios.tcsetattr(self._source, termios.TCSANOW, self._saved)
            self.entered = False

    def _foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._source) == os.getpgrp()
        except OSError:
            # Not our controlling terminal: there is no background then.
            return True

    def _put(self, data: bytes) -> None:
        """Write all of it; to a terminal that takes nothing for a while, no more."""
        while data:
            if not select.select([], [self._target], [], _PATIENCE)[1]:
                self.fresh = True
                return
            with suppress(BlockingIOError):
                data = data[os.write(self._target, data[:_CHUNK]) :]

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        # A writer may be stuck in a terminal that takes nothing: what must be done is done anyway.
        held = self._lock.acquire(timeout=2 * _PATIENCE)
        try:
            yield held
        finally:
            if held:
                self._lock.release()


@contextmanager
def guarded(stage: Stage) -> Iterator[None]:
    """Give the terminal back before a signal ends or stops the process inside the block.

    Signals that somebody else handles are left to them. Outside of the main thread, where Python
    delivers no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        stage.leave()
        _by_default(number)

    def stop(number: int, _frame: FrameType | None) -> None:
        wanted = stage.wanted
        stage.leave()
        _by_default(number)
        signal.signal(number, stop)
        if wanted:
            stage.enter()

    def go_on(_number: int, _frame: FrameType | None) -> None:
        stage.again()

    handlers: dict[int, Callable[[int, FrameType | None], None]] = {
        getattr(signal, name): end for name in _ENDING
    }
    handlers |= {signal.SIGTSTP: stop, signal.SIGCONT: go_on}
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) == signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handlers[number]:
                signal.signal(number, handler)


def _by_default(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    # To this thread: it takes effect before the next line.
    signal.pthread_kill(threading.get_ident(), number)


def _one_by_one(mode: list[Any]) -> list[Any]:
    """Keys are handed on as they are pressed and not echoed; Ctrl-C and Ctrl-Z keep their sense."""
    source, target, control, local, *speeds, characters = mode
    characters = list(characters)
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    # Ctrl-S would freeze the screen, Ctrl-V and Ctrl-O hide the next key.
    return [
        source & ~(termios.IXON | termios.ISTRIP) | termios.ICRNL,
        target,
        control,
        local & ~(termios.ICANON | termios.ECHO | termios.IEXTEN) | termios.ISIG,
        *speeds,
        characters,
    ]
