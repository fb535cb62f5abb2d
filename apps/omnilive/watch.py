"""Watches: a question put after every unit, and told about when its answer turns to yes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Event = dict[str, Any]

ASKED = "{watch} Is it so right now? Answer yes or no."
"""How a watch is put to a model that says nothing of it."""
LONGEST = 8
"""Most tokens of an answer."""


class Branching(Protocol):
    """What of a session looks without leaving a trace."""

    def ask(
        self, question: str, *, max_tokens: int | None = None, branch: bool = False, quiet: bool
    ) -> str:
        """Answer a question."""
        ...


@dataclass
class _Watch:
    text: str
    prompt: str
    on: bool = False


class Watches:
    """What somebody waits for.

    Args:
        texts: as people say it, for instance ``tell me when a dog appears``.
        session: asked as branches, so that the stream never knows.
        show: given a ``watch`` event whenever an answer turns to yes.
        asked: how a watch is put to the model; ``{watch}`` stands for the text.
    """

    def __init__(
        self,
        texts: Sequence[str],
        session: Branching,
        show: Callable[[Event], None],
        asked: str = ASKED,
    ) -> None:
        self._watches = [_Watch(text, asked.replace("{watch}", text)) for text in texts]
        self._session, self._show, self._stopped = session, show, False
        self.cost = 0.0
        """Milliseconds that the last look took, of all watches together."""

    def stop(self) -> None:
        """Look no further. May be called from a signal handler."""
        self._stopped = True

    def look(self, now: float) -> None:
        """Put every watch at a second of the stream."""
        start = time.perf_counter()
        turned = []
        for watch in self._watches:
            if self._stopped:
                break
            answer = self._session.ask(
                watch.prompt, max_tokens=LONGEST, branch=True, quiet=True
            ).strip()
            yes = answer.lower().startswith("yes")
            if yes and not watch.on:
                turned.append((watch.text, answer))
            watch.on = yes
        self.cost = round((time.perf_counter() - start) * 1e3, 1)
        for text, answer in turned:
            self._show({"event": "watch", "t": round(now, 3), "watch": text, "text": answer})
