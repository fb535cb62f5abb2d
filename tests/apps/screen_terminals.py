"""A pseudo terminal with a small shell in it, which has job control."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from struct import pack
from typing import Any, Self

DRIVER = Path(__file__).parent / "screen_driver.py"

# Starts a program as its foreground job, tells what becomes of it, and brings it back when told.
SHELL = """
import fcntl, json, os, signal, subprocess, sys, termios
told, orders = int(sys.argv[1]), int(sys.argv[2])
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
own = termios.tcgetattr(0)
def tell(**what):
    os.write(told, (json.dumps(what) + "\\n").encode())
def default():
    for name in ("SIGTTOU", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    default()
    os.close(told)
    os.close(orders)
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
tell(pid=job)
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    try:
        os.tcsetpgrp(0, os.getpgrp())
        local = termios.tcgetattr(0)[3]
    except (OSError, termios.error):
        local = 0
    if not os.WIFSTOPPED(status):
        tell(code=os.waitstatus_to_exitcode(status))
        break
    mode = termios.tcgetattr(0)
    tell(stopped=os.WSTOPSIG(status), plain=bool(local & termios.ICANON and local & termios.ECHO))
    termios.tcsetattr(0, termios.TCSANOW, own)
    order = os.read(orders, 2)
    if order == b"fg":
        os.tcsetpgrp(0, job)
        termios.tcsetattr(0, termios.TCSANOW, mode)
    os.kill(job, signal.SIGCONT)
"""


class Terminal:
    """Runs the driver in a mode, or Python with the words of ``command``.

    What it shows and what becomes of it can be waited for.
    """

    def __init__(
        self,
        mode: str,
        columns: int = 80,
        lines: int = 24,
        environment: dict[str, str] | None = None,
        command: tuple[str, ...] = (),
    ) -> None:
        self.shown = bytearray()
        self.told: list[dict[str, Any]] = []
        self._master, self._slave = os.openpty()
        self.resize(columns, lines)
        self.before = self.mode()
        reports, told = os.pipe()
        orders, self._orders = os.pipe()
        given = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONIOENCODING": "utf-8"}
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        }
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._shell = subprocess.Popen(
            [sys.executable, "-c", SHELL, str(told), str(orders), *(command or (DRIVER, mode))],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            pass_fds=(told, orders),
            start_new_session=True,
            env=kept | given | path | (environment or {}),
        )
        os.close(told)
        os.close(orders)
        self._threads = [
            threading.Thread(target=self._collect, args=(self._master, self._show), daemon=True),
            threading.Thread(target=self._collect, args=(reports, self._report), daemon=True),
        ]
        self._reports = reports
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, StopIteration):
            os.kill(next(item["pid"] for item in self.told if "pid" in item), signal.SIGKILL)
        self._shell.kill()
        self._shell.wait()
        for descriptor in (self._slave, self._orders):
            os.close(descriptor)
        self.hang_up()
        os.close(self._reports)

    @property
    def text(self) -> str:
        return self.shown.decode(errors="replace")

    @property
    def code(self) -> int:
        """The driver's exit code, or the negative number of the signal that ended it."""
        return int(self.await_told("code")["code"])

    def mode(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def resize(self, columns: int, lines: int) -> None:
        ioctl(self._slave, termios.TIOCSWINSZ, pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def send(self, number: int) -> None:
        os.kill(self.await_told("pid")["pid"], number)

    def order(self, text: str) -> None:
        os.write(self._orders, text.encode())

    def hang_up(self) -> None:
        master, self._master = self._master, -1
        if master >= 0:
            os.close(master)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, f"{what} did not come; shown: {bytes(self.shown)!r}"
            time.sleep(0.02)

    def until_shown(self, text: str, after: int = 0) -> None:
        self.until(lambda: text.encode() in self.shown[after:], text)

    def await_told(self, key: str, number: int = 0) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [item for item in self.told if key in item]

        self.until(lambda: len(found()) > number, key)
        return found()[number]

    def given_back(self) -> bool:
        """Whether the terminal is as it was: mode, buffer, cursor, wrapping, pasting."""
        pairs = ((1049, "h", "l"), (25, "l", "h"), (7, "l", "h"), (2004, "h", "l"))
        ended = all(
            self.shown.rfind(f"\x1b[?{number}{off}".encode())
            > self.shown.rfind(f"\x1b[?{number}{on}".encode())
            for number, on, off in pairs
        )
        return ended and self.mode() == self.before

    def _show(self, data: bytes) -> None:
        self.shown += data

    def _report(self, data: bytes) -> None:
        self.told += [json.loads(line) for line in data.splitlines()]

    def _collect(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        with suppress(OSError):
            while data := os.read(descriptor, 1 << 16):
                take(data)
