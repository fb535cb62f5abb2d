"""A run with a screen and no model, for tests that look at it through a pseudo terminal.

Usage: ``python screen_driver.py MODE``; the modes are the functions below. It ends after 20 s at
the latest.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from omnilive.interrupts import gently
from omnilive.screen.controls import Actions
from omnilive.screen.display import Screen
from omnilive.screen.fitness import look, unfit
from omnilive.screen.senses import Senses

FRAME = np.full((24, 24, 3), (200, 40, 40), np.uint8)
ENDED = threading.Event()


def senses() -> Senses:
    return Senses(FRAME, -30.0, "front camera", "on", "desk microphone", "on", 0, 0, 0.0)


def broken_senses() -> Senses:
    raise RuntimeError("the devices broke")


def stubborn_end() -> None:
    """Somebody who ends nothing at the first Ctrl-C."""


def broken_line(text: str) -> None:
    raise RuntimeError(f"nobody takes {text}")


def units() -> Iterator[dict[str, object]]:
    kv = {"cells": 67, "pages": 3, "span": 192, "bytes": 1179648, "budget": 512}
    for unit in range(200):
        if ENDED.wait(0.1):
            return
        yield {"event": "unit", "t": unit / 10, "unit": unit, "tokens": {}, "kv": kv}


def main(mode: str) -> None:
    reason = unfit()
    if reason is not None:
        print(f"no screen: {reason}")
        return
    lines: list[str] = []
    if mode == "deaf":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if mode == "orderly":
        signal.signal(signal.SIGTERM, lambda *_: ENDED.set())
    actions = Actions(broken_line if mode == "broken-line" else lines.append, ENDED.set)
    with ExitStack() as stack:
        given = broken_senses if mode == "broken" else senses
        screen = stack.enter_context(Screen("a test", look(), actions, given))
        screens = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
        stack.enter_context(gently(stubborn_end if mode == "stubborn" else ENDED.set))
        if mode != "orderly":
            # As in a run that leaves these signals to the screen.
            for number, handler in screens.items():
                signal.signal(number, handler)
        if mode == "stderr":
            os.write(2, b"ALSA lib pcm.c: \x1b[2J no such thing\nand more")
        for event in units():
            screen.event(event)
            if mode == "raises" and event["unit"] == 5:
                raise RuntimeError("the run broke")
            if mode == "busy":
                # Nothing but Python: the other threads get their turns all the same.
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    pass
            while lines:
                screen.question(event["t"], lines.pop())
                answer = "a blue \x1b[31mstar"
                screen.event({"event": "token", "t": event["t"], "text": answer})
                ended = {"event": "answer", "t": event["t"], "text": answer, "ttft_ms": 80.0}
                screen.event(ended)
        screen.event({"event": "warning", "t": 3.0, "message": "the last warning"})
    print("the end")


if __name__ == "__main__":
    main(sys.argv[1])
