"""Where the time of a loop goes: spans that nest, each counted without what lies inside it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_PARTS = {"forward": "prefill", "logits": "prefill"}
_DEVICE = ("forward", "move")


def _wait_for_nothing() -> None:
    pass


@dataclass
class Clock:
    """A tracer that adds up milliseconds by part of the loop. One thread.

    Attributes:
        wait: called where a span of the device begins and ends, so that it holds the device's work.
        speaking: whether steps are counted as ``decode`` rather than ``prefill``.
        spent: milliseconds by part since :meth:`take`.
        last: milliseconds of the span of the device that ended last.
    """

    wait: Callable[[], None] = _wait_for_nothing
    speaking: bool = False
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last: float = 0.0
    _inside: list[float] = field(default_factory=list)

    def span(self, name: str, *, device: bool = False, **about: Any) -> _Span:
        """A span; those named as in the cache's loop know of themselves that they are a device's.

        Args:
            name: part of the loop.
            device: whether the device works in it.
            about: what the cache tells of it, unused.
        """
        part = "decode" if self.speaking and name in _PARTS else _PARTS.get(name, name)
        return _Span(self, part, device or name in _DEVICE)

    def take(self) -> dict[str, float]:
        """What was spent, to begin anew."""
        spent, self.spent = dict(self.spent), defaultdict(float)
        return spent


class _Span:
    __slots__ = ("_clock", "_device", "_part", "_start")

    def __init__(self, clock: Clock, part: str, device: bool) -> None:
        self._clock, self._part, self._device = clock, part, device

    def __enter__(self) -> _Span:
        if self._device:
            self._clock.wait()
        self._clock._inside.append(0.0)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device:
            self._clock.wait()
        taken = (time.perf_counter() - self._start) * 1e3
        inside = self._clock._inside
        self._clock.spent[self._part] += taken - inside.pop()
        if inside:
            inside[-1] += taken
        if self._device:
            self._clock.last = taken

    def add(self, **about: Any) -> None:
        """What the cache tells of it, unused."""
