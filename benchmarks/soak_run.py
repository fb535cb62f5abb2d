"""A long stream through the real session, measured unit by unit and summed up part by part."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.soak_stream import Moment
from omni_core import Model, Session
from omni_core.backend import PAGE, StepPlan, StepResult
from omnilive.watch import Watches

WATCHED = "tell me when a red star appears"
WATCH_EVERY = 10.0
"""Seconds from one look of the watch to the next."""
WARM_UP = 60.0
"""Seconds that count for no part: the cache fills, libraries take their memory."""
MOST_TOKENS = 16
QUIET, FEWEST = 12, 20
"""Stretches of a part, and values of one at least; the quickest counts, since other processes can
only add time."""

_ELSEWHERE = ("prepare", "encode", "forward", "logits", "move")
"""What a unit takes that is not the core's."""


class Stopwatch:
    """A tracer that sums what each kind of span takes, in seconds. It is its own only span."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self._open: list[tuple[str, float]] = []

    def span(self, name: str, **_: Any) -> Stopwatch:
        """A span of this kind."""
        self._open.append((name, time.perf_counter()))
        return self

    def add(self, **_: Any) -> None:
        """Only time is measured."""

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *_: object) -> None:
        name, start = self._open.pop()
        self.taken[name] += time.perf_counter() - start


class Reaching:
    """A backend that notes how far apart a query and a key may have been, beside running it."""

    def __init__(self, backend: Any) -> None:
        self._backend, self.furthest = backend, 0

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        """Run a plan."""
        shift = int(plan.shifts[:, 1].max(initial=0))
        self.furthest = max(self.furthest, int(plan.positions.max(initial=0)) + shift)
        result: StepResult = self._backend.forward(plan, embeddings)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@dataclass
class Part:
    """What was measured in one part of the stream, an hour of eight.

    ``unit`` are milliseconds of every unit, ``whole`` of those with picture and sound: parts have
    more or fewer of the others, which take half of the time.
    """

    name: str
    unit: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    plan: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    watch: list[float] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)
    free: int = sys.maxsize
    shortest: float = np.inf
    scored: int = 0
    right: int = 0

    def note(self, **found: int) -> None:
        """Keep the largest of each figure."""
        for name, value in found.items():
            self.most[name] = max(self.most[name], value)

    def row(self) -> dict[str, Any]:
        """For JSON; times in milliseconds, memory in bytes, span in cells."""
        most = ("memory", "rss", "cells", "pages", "span", "leaked", "astray", "furthest")
        return {
            "part": self.name,
            "units": len(self.unit),
            "shortest_unit_s": round(float(self.shortest), 3),
            "questions": len(self.first),
            "watches": len(self.watch),
            "scored": self.scored,
            "right": self.right,
            "position": self.most["position"],
            **{f"most_{name}": self.most[name] for name in most},
            "least_free_pages": self.free,
            "unit_ms_median": _round(median(self.unit)),
            "unit_ms_p95": _round(float(np.percentile(self.unit, 95))),
            "unit_ms_quiet": _round(_quiet(self.whole)),
            "first_token_ms_median": _round(median(self.first)),
            "first_token_ms_quiet": _round(_quiet(self.first)),
            "watch_ms_median": _round(median(self.watch)),
            "plan_ms_median": _round(median(self.plan)),
        }


class Soak:
    """One session that is never restarted.

    Args:
        model: loaded.
        budget: cells.
        asked: how a watch is put to the model.
    """

    def __init__(self, model: Model, budget: int, asked: str) -> None:
        self._watch_time, self._stopwatch = 0.0, Stopwatch()
        self._backend = Reaching(model.backend)
        model = replace(model, backend=self._backend)
        self.session = Session(
            model,
            budget=budget,
            max_tokens=MOST_TOKENS,
            tracer=self._stopwatch,
            on_event=self._show,
        )
        self._watches = Watches([WATCHED], self.session, self._show, asked)
        self._last: dict[str, Any] = {}

    def run(
        self, moments: Iterable[Moment], seconds: float, parts: int, done: Callable[[Part], None]
    ) -> None:
        """Take a stream in; ``done`` is given each part as it ends.

        Args:
            moments: of the stream.
            seconds: how long it is.
            parts: into how many parts of one length it is divided, after the warm-up.
            done: called with each part.
        """
        long = (seconds - WARM_UP) / parts
        unit = "hour" if abs(seconds / parts - 3600) < 1 else "part"
        number, part = 0, Part("warm-up")
        for moment in moments:
            stop = moment.media.stop
            self._take(moment, part)
            if stop >= WARM_UP + number * long - 1e-3:
                if number:
                    done(part)
                if number == parts:
                    return
                number += 1
                part, self._backend.furthest = Part(f"{unit} {number}"), 0

    def _take(self, moment: Moment, part: Part) -> None:
        media, session = moment.media, self.session
        self._stopwatch.taken.clear()
        start = time.perf_counter()
        session.append(media)
        taken = time.perf_counter() - start
        elsewhere = sum(self._stopwatch.taken[name] for name in _ELSEWHERE)
        part.unit.append(taken * 1e3)
        if media.frames and media.audio is not None:
            part.whole.append(taken * 1e3)
        part.plan.append((taken - elsewhere) * 1e3)
        part.shortest = min(part.shortest, media.stop - media.start)
        part.note(memory=self._last["memory"], cells=self._last["kv"]["cells"])
        self._look(part)
        if moment.asked is not None:
            said = session.ask(moment.asked.text)
            part.first.append(self._last["ttft_ms"])
            if moment.asked.truth is not None:
                part.scored += 1
                part.right += said.strip() == moment.asked.truth
            self._look(part)
        if media.stop >= self._watch_time:
            self._watch_time += WATCH_EVERY
            self._watches.look(media.stop)
            part.watch.append(self._watches.cost)
            self._look(part)

    def _look(self, part: Part) -> None:
        """Compare what the tables hold with what the ledger says is alive."""
        session = self.session
        tables, ledger = session._tables, session._ledger
        usage, free, cells = tables.usage(), tables.free_pages(), ledger.view().cells
        lived_in = np.unique(cells[cells >= 0] // PAGE).size
        part.free = min(part.free, free)
        filled = sum(int(one.fill.sum()) for one in session.page_maps())
        part.note(
            leaked=abs(tables.arena.pages - free - lived_in),
            astray=abs(filled - int((cells >= 0).sum())),
            cells=len(ledger),
            pages=usage.pages,
            span=usage.span * PAGE,
            furthest=self._backend.furthest,
            position=session._cursor.position,
            rss=resident(),
        )

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] in ("unit", "answer"):
            self._last = event


def resident() -> int:
    """Bytes of this process in memory; the most so far where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return kept * (1 if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _quiet(values: list[float]) -> float:
    """The median of the quickest stretch."""
    return min(median(stretch) for stretch in _stretches(values))


def _stretches(values: list[float]) -> Iterator[list[float]]:
    size = min(len(values), max(FEWEST, len(values) // QUIET))
    for start in range(0, len(values) - size + 1, size):
        yield values[start : start + size]


def _round(value: float) -> float:
    return round(value, 3)
