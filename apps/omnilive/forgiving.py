"""Questions that may be refused without ending the stream."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from omni_core import Session
from omni_core.errors import BudgetError


class Forgiving:
    """A session of which a question that does not fit costs a warning, and not the stream."""

    def __init__(self, session: Session, warn: Callable[[str], None]) -> None:
        self._session, self._warn = session, warn
        self._told: set[str] = set()

    def ask(self, question: str, *, branch: bool = False, **options: Any) -> str:
        """Answer, or warn and answer nothing."""
        try:
            return self._session.ask(question, branch=branch, **options)
        except BudgetError as error:
            # A watch is put again and again.
            if not branch or question not in self._told:
                self._warn(f"{textwrap.shorten(question, 40)!r} was not asked: {error}")
            if branch:
                self._told.add(question)
            return ""

    def interrupt(self) -> None:
        """End the running answer."""
        self._session.interrupt()
