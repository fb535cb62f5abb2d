"""The live screen: an :class:`~omnilive.output.Output` that draws itself on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Self

from omni_core import UnitMedia
from omni_core.paging import Layout
from omni_core.paging.table import PageMap
from omni_core.watcher import Watcher
from omnilive.output import Event, Text
from omnilive.screen.aside import Aside
from omnilive.screen.controls import Actions, Controls
from omnilive.screen.explaining import Onlooker
from omnilive.screen.keys import Keyboard
from omnilive.screen.layout import render
from omnilive.screen.lines import Look
from omnilive.screen.painter import Painter
from omnilive.screen.senses import Snapshot, senses_of
from omnilive.screen.stage import Stage, guarded
from omnilive.screen.state import SPOKEN, TYPED, Counts, View
from omnilive.terminal import OutputError, hang_up

_REFRESH = 0.1
_REMAINING = 20
_UNHEARD = "(spoken)"


class Screen:
    """Draws a run until it is stopped; then conversation and summary stay on the terminal.

    Use it in the main thread, as a context: the terminal is given back however the block ends, and
    before a signal ends or stops the process. What goes wrong on one of its threads gives the
    terminal back too, and is raised by the next call.

    Args:
        title: what runs, in a few words.
        look: what the terminal can show.
        actions: what keys do.
        snapshot: asked ten times a second for what the devices gave; None for a clip, whose units
            are shown by :meth:`saw`.
    """

    def __init__(
        self,
        title: str,
        look: Look,
        actions: Actions,
        snapshot: Callable[[], Snapshot] | None = None,
    ) -> None:
        self._view, self._look = View(title=title), look
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._stage = Stage(sys.stdin.fileno(), sys.stdout.fileno())
        encoding = sys.stdout.encoding or "utf-8"
        self._painter = Painter(look, encoding)
        self._keyboard = Keyboard(
            sys.stdin.fileno(),
            Controls(actions, self._turn_over, self._typed).press,
            self._fail,
            lambda: self._stage.entered,
            sys.stdin.encoding or encoding,
        )
        self._aside = Aside(self.note)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="screen", daemon=True)
        self._failure: BaseException | None = None
        self._left = ExitStack()
        self._text = Text()
        self._after: list[Callable[[], None]] = []

    def start(self) -> None:
        """Take the terminal over and begin to draw."""
        sys.stdout.flush()
        with ExitStack() as undo:
            undo.callback(self._stage.leave)
            undo.enter_context(guarded(self._stage))
            self._stage.enter()
            undo.callback(self._aside.stop)
            self._aside.start()
            undo.callback(self._keyboard.stop)
            self._keyboard.start()
            self._thread.start()
            # First of all, whatever comes after.
            undo.callback(self._stage.leave)
            self._left = undo.pop_all()

    def stop(self) -> None:
        """Give the terminal back, and leave the last turns and the summary on it."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        try:
            self._left.close()
        finally:
            self._stage.leave()
        self._thread.join(1)
        with suppress(OSError, OutputError):
            self._remain()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def event(self, event: Event) -> None:
        """Show an event."""
        if self._stopped.is_set():
            self._text.event(event)
            return
        with self._lock:
            self._view.take(event)
        if event["event"] == "summary":
            self._after.append(lambda: self._text.event(event))
        self._check()

    def question(self, time: float, text: str, spoken: bool = False) -> None:
        """Show a question by its mark; its answer follows as events."""
        if self._stopped.is_set():
            self._text.question(time, text, spoken)
            return
        with self._lock:
            self._view.ask(SPOKEN if spoken else TYPED, time, text or _UNHEARD)
        self._check()

    def note(self, text: str) -> None:
        """Show a line in the log."""
        if self._stopped.is_set():
            self._text.note(text)
            return
        with self._lock:
            for line in text.splitlines():
                self._view.remark(line)

    def drawing(self, text: str) -> None:
        """Leave it on the terminal at the end; the screen has its own page map."""
        if self._stopped.is_set():
            self._text.drawing(text)
        else:
            self._after.append(lambda: self._text.drawing(text))

    def hearing(self, speech: bool) -> None:
        """Show whether somebody is speaking."""
        with self._lock:
            self._view.hearing = speech

    def saw(self, unit: UnitMedia, name: str) -> None:
        """Show a unit of the clip ``name``, where there are no devices."""
        with self._lock:
            self._view.sense(senses_of(unit, name), 1.0)
        self._check()

    def onlooker(self, layout: Layout, other: Watcher | None = None) -> Watcher:
        """A session's watcher that shows what stays and where it lies; passes on to another."""
        return Onlooker(self._explain, layout, other)

    def _explain(
        self,
        maps: tuple[PageMap, ...],
        layout: Layout,
        kept: dict[str, Counts],
        dropped: dict[str, Counts],
    ) -> None:
        with self._lock:
            view = self._view
            view.maps, view.layout, view.kept, view.dropped = maps, layout, kept, dropped

    def _check(self) -> None:
        failure, self._failure = self._failure, None
        if isinstance(failure, OSError):
            if not hang_up():
                raise BrokenPipeError("the terminal is gone") from failure
        elif failure is not None:
            raise failure

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._stage.leave()

    def _draw(self) -> None:
        last = time.monotonic()
        try:
            while not self._stopped.wait(max(0.0, last + _REFRESH - time.monotonic())):
                now = time.monotonic()
                self._refresh(now - last)
                last = now
        except BaseException as error:
            self._fail(error)

    def _refresh(self, passed: float) -> None:
        snapshot = self._snapshot() if self._snapshot is not None else None
        self._stage.resume()
        width, height = self._stage.size()
        with self._lock:
            if snapshot is not None:
                self._view.sense(snapshot, passed)
            if not self._stage.entered:
                return
            sheet = render(self._view, width, height, self._look)
        fresh, self._stage.fresh = self._stage.fresh, False
        data = self._painter.paint(sheet, fresh)
        if data:
            self._stage.write(data)

    def _typed(self, text: str | None) -> None:
        with self._lock:
            self._view.typed = text

    def _turn_over(self) -> None:
        with self._lock:
            self._view.explaining = not self._view.explaining

    def _remain(self) -> None:
        text = self._text
        for turn in list(self._view.turns)[-_REMAINING:]:
            text.question(turn.time, turn.text)
            ending = {} if turn.truth is None else {"truth": turn.truth}
            text.event({"event": "answer", "t": turn.time, "text": turn.answer, **ending})
        for remark in self._view.log:
            if remark.warning:
                text.event({"event": "warning", "t": remark.time, "message": remark.text})
        for show in self._after:
            show()
