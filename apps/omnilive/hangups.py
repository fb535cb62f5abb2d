"""A terminal that goes while nothing is written to it: the run ends as by a SIGHUP.

The system sends that signal to those alone whose controlling terminal it was.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from omnilive.terminal import hang_up

_STREAMS = (1, 2)


@contextmanager
def noticed() -> Iterator[None]:
    """Hang up once where stdout or stderr is a terminal that goes inside the block, or has gone.

    Nothing changes where the system does not tell of it, or a hang-up is not to be heard.
    """
    watched = [stream for stream in _STREAMS if _shows(stream)]
    if not (watched and hasattr(select, "poll") and hasattr(signal, "SIGHUP")):
        yield
        return
    ended, end = os.pipe()
    thread = threading.Thread(target=_watch, args=(watched, ended), name="terminal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(end, b".")
        thread.join(1)
        os.close(end)
        os.close(ended)


def _watch(streams: list[int], ended: int) -> None:
    poll = select.poll()
    for stream in streams:
        # Of no event but those that come unasked.
        poll.register(stream, 0)
    poll.register(ended, select.POLLIN)
    while True:
        for stream, event in poll.poll():
            if stream == ended:
                return
            if event & select.POLLHUP:
                hang_up()
                return
            poll.unregister(stream)


def _shows(stream: int) -> bool:
    """Whether it may be a terminal; one that has gone no longer says so."""
    try:
        return stat.S_ISCHR(os.fstat(stream).st_mode)
    except OSError:
        return False
