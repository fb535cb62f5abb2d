"""Turns of people, spoken or typed: taken as they come, answered between units."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from omnilive.output import Output
from omnilive.speech.turns import Began, Ended

MOST_WAITING = 8
"""Turns that may wait for an answer; more push the oldest out."""


class Answering(Protocol):
    """What of a session answers."""

    def ask(self, question: str) -> str:
        """Answer a turn; an empty one was spoken, and is in the stream."""
        ...

    def interrupt(self) -> None:
        """End the running answer."""
        ...


class Speaking(Protocol):
    """What of a voice says answers."""

    def add(self, text: str) -> None:
        """More of the running answer."""
        ...

    def finish(self) -> None:
        """The answer is complete."""
        ...

    def stop(self) -> None:
        """Be silent at once."""
        ...


@dataclass(frozen=True)
class _Turn:
    """A turn that waits: its text, the stream's second of its end, and when that was known."""

    text: str
    stop: float
    known: float


class Conversation:
    """Answers turns one after another, in the thread that runs the stream.

    Args:
        session: answers.
        output: shows questions.
        cut: closes the running unit at a second of the stream, so that an answer comes soon.
        barge_in: whether speech ends a running answer.
        voice: says answers, if anybody is to.
        clock: seconds, for latencies.
    """

    def __init__(
        self,
        session: Answering,
        output: Output,
        *,
        cut: Callable[[float], None],
        barge_in: bool = True,
        voice: Speaking | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._output, self._cut = session, output, cut
        self._barge_in, self._voice, self._clock = barge_in, voice, clock
        self._waiting: deque[_Turn] = deque(maxlen=MOST_WAITING)
        self._known: float | None = None
        self._left_out = 0
        self._answering = self._stopped = self._broken_in = False

    def hear(self, event: Began | Ended) -> None:
        """Somebody has begun to speak, or has ended. May be called from any thread."""
        if isinstance(event, Ended):
            self._take("", event.decided)
        elif self._barge_in and self._answering:
            self._broken_in = True
            self._session.interrupt()
            if self._voice is not None:
                self._voice.stop()

    def type(self, text: str, now: float) -> None:
        """Take a typed line at a second of the stream. May be called from any thread."""
        if text.strip():
            self._take(text.strip(), now)

    def stop(self) -> None:
        """Answer no more. May be called from a signal handler."""
        self._stopped = True

    def ask(self, question: str) -> str:
        """Answer a question that is nobody's turn but due, in the same way: aloud, and broken off.

        Who asks has shown it.
        """
        with self._answer():
            return self._session.ask(question)

    def interrupt(self) -> None:
        """End the running answer."""
        self._session.interrupt()

    def answer(self, now: float) -> None:
        """Answer the turns that had ended by a second of the stream."""
        self._tell_left_out(now)
        while not self._stopped and self._waiting and self._waiting[0].stop <= now + 1e-4:
            turn = self._waiting.popleft()
            with self._answer(turn.known):
                self._output.question(now, turn.text, spoken=not turn.text)
                self._session.ask(turn.text)

    def token(self, text: str) -> None:
        """Say a piece of an answer that is being given; one that was broken in upon ends here."""
        if self._answering and self._broken_in:
            # Speech may have begun before the session had.
            self._session.interrupt()
            return
        if self._answering and self._voice is not None:
            self._voice.add(text)

    def latency(self) -> float | None:
        """Milliseconds since the turn that is being answered was known to have ended, if one is."""
        if not self._answering or self._known is None:
            return None
        return round((self._clock() - self._known) * 1e3, 1)

    @contextmanager
    def _answer(self, known: float | None = None) -> Iterator[None]:
        self._known, self._broken_in, self._answering = known, False, True
        try:
            yield
            if self._voice is not None:
                self._voice.finish()
        finally:
            self._answering = False

    def _tell_left_out(self, now: float) -> None:
        count, self._left_out = self._left_out, 0
        if count and not self._stopped:
            message = f"{count} turns were left out: more than {MOST_WAITING} waited for an answer"
            self._output.event({"event": "warning", "t": round(now, 3), "message": message})

    def _take(self, text: str, stop: float) -> None:
        self._left_out += len(self._waiting) == MOST_WAITING
        self._waiting.append(_Turn(text, stop, self._clock()))
        self._cut(stop)
