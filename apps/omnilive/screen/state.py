"""What a screen shows: plain values, brought up to date by events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from omni_core.paging import Layout
from omni_core.paging.table import PageMap
from omnilive.screen.picture import Drawn
from omnilive.screen.senses import NO_SOUND, Snapshot

Event = dict[str, Any]
Counts = tuple[int, int, int]
"""Vision, audio and text tokens."""
TYPED, SPOKEN, ALERT = "\u203a", "♪", "!"
"""How a turn came about."""
_TURNS, _LOG, _LATENCIES = 200, 100, 99
# Decibels a second by which the highest level sinks.
_SINKING = 20.0


@dataclass
class Turn:
    """A question, or an alert, and the answer as far as it has come."""

    mark: str
    time: float
    text: str
    answer: str = ""
    done: bool = False
    truth: str | None = None


@dataclass(frozen=True)
class Remark:
    """A line of the log, at a second of the stream."""

    time: float
    text: str
    warning: bool = False


@dataclass
class View:
    """Everything that a screen draws.

    Attributes:
        title: what runs, in a few words.
        time: seconds of the stream.
        kv: the ``kv`` of the last ``unit`` event.
        maps, layout: the page maps of each layer group, and how they were laid out.
        kept, dropped: tokens that are there and that have gone so far, by reason.
        latencies: milliseconds to the first token, the newest last.
        lag: seconds behind the devices.
        level, peak: the microphone's loudness now, and the highest of late, in decibels.
        hearing: somebody is speaking.
        picture: the newest frame as it was drawn last.
        typed: the line that is being typed, if one is.
        explaining: what stays, and why, is shown in place of the conversation.
    """

    title: str = ""
    time: float = 0.0
    turns: deque[Turn] = field(default_factory=lambda: deque(maxlen=_TURNS))
    log: deque[Remark] = field(default_factory=lambda: deque(maxlen=_LOG))
    kv: dict[str, int] = field(default_factory=dict)
    maps: tuple[PageMap, ...] = ()
    layout: Layout | None = None
    kept: dict[str, Counts] = field(default_factory=dict)
    dropped: dict[str, Counts] = field(default_factory=dict)
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    lag: float = 0.0
    dropped_frames: int = 0
    dropped_samples: int = 0
    senses: Snapshot | None = None
    level: float = NO_SOUND
    peak: float = NO_SOUND
    picture: Drawn | None = None
    hearing: bool = False
    typed: str | None = None
    explaining: bool = False
    ended: bool = False

    @property
    def answering(self) -> bool:
        """Whether an answer is being given."""
        return bool(self.turns) and not self.turns[-1].done

    @property
    def latency(self) -> tuple[float, float] | None:
        """Milliseconds to the first token: the last, and the median of the last 99."""
        return (self.latencies[-1], median(self.latencies)) if self.latencies else None

    def ask(self, mark: str, time: float, text: str) -> None:
        """Open a turn; one that is still open has ended."""
        if self.turns:
            self.turns[-1].done = True
        self.turns.append(Turn(mark, time, text))

    def remark(self, text: str, warning: bool = False) -> None:
        """Put a line into the log."""
        self.log.append(Remark(self.time, " ".join(text.split()), warning))

    def take(self, event: Event) -> None:
        """Take an event in; kinds that are not shown are left alone.

        The latency of an ``answer`` is its ``latency_ms``, which a spoken question has (from the
        end of speech), else its ``ttft_ms``.
        """
        self.time = max(self.time, event.get("t", 0.0))
        if event["event"] in _TAKERS:
            _TAKERS[event["event"]](self, event)

    def sense(self, snapshot: Snapshot, passed: float) -> None:
        """Take in what the devices gave, ``passed`` seconds after the last time."""
        self.senses = snapshot
        if snapshot.lag is not None:
            self.lag = snapshot.lag
        if snapshot.dropped_frames is not None:
            self.dropped_frames = snapshot.dropped_frames
        if snapshot.dropped_samples is not None:
            self.dropped_samples = snapshot.dropped_samples
        self.level = snapshot.level_db
        self.peak = max(self.level, self.peak - _SINKING * passed)


def _unit(view: View, event: Event) -> None:
    if view.turns:
        # No unit is taken in while an answer is given: one that is open was not to be had.
        view.turns[-1].done = True
    view.kv = event["kv"]
    view.lag = event.get("lag_ms", 0.0) / 1e3
    dropped = event.get("dropped", {})
    view.dropped_frames = dropped.get("frames", 0)
    view.dropped_samples = dropped.get("samples", 0)


def _token(view: View, event: Event) -> None:
    if view.answering:
        view.turns[-1].answer += event["text"]


def _answer(view: View, event: Event) -> None:
    if not view.answering:
        view.ask(TYPED, event["t"], event["question"])
    turn = view.turns[-1]
    turn.answer, turn.truth, turn.done = event["text"], event.get("truth"), True
    if event["ttft_ms"]:
        view.latencies.append(event["latency_ms"] if "latency_ms" in event else event["ttft_ms"])


def _evict(view: View, event: Event) -> None:
    view.remark(f"evicted {sum(event['tokens'].values())} tokens; {event['cells']} stay")


def _warning(view: View, event: Event) -> None:
    view.remark(event["message"], warning=True)


def _watch(view: View, event: Event) -> None:
    view.ask(ALERT, event["t"], event["watch"])
    turn = view.turns[-1]
    turn.answer, turn.done = event["text"], True


def _summary(view: View, event: Event) -> None:
    view.ended = True


_TAKERS: dict[str, Callable[[View, Event], None]] = {
    "unit": _unit,
    "token": _token,
    "answer": _answer,
    "evict": _evict,
    "warning": _warning,
    "watch": _watch,
    "summary": _summary,
}
