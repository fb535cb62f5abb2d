"""A stream through the real session over a backend that computes nothing, unit by unit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.null_backend import NullBackend
from benchmarks.traces import ANSWER, Trace
from omni_core.backend import PAGE
from omni_core.budget import cell_bytes, low_watermark
from omni_core.errors import BudgetError
from omni_core.frontend.base import UnitMedia
from omni_core.ledger import LedgerView
from omni_core.paging import Layout
from omni_core.retention import POLICIES, Policy
from omni_core.retention.base import Bool, Reasons, arrival_tiers
from omni_core.retention.ranking import (
    drop_all_but_best,
    why_dropped_but_best,
    why_kept_but_best,
)
from omni_core.session import Model, Session
from omni_core.units import Int8, Tier, TokenBlock

FRAME = 8192
"""Positions of a frame."""
CHUNK = 8192
"""Most tokens in one forward pass: a unit goes in as one."""


@dataclass(frozen=True)
class RandomEviction:
    """Evicts tokens by lot: the hardest case for placement."""

    name: str = "random"
    scored: bool = False

    def tiers(self, block: TokenBlock) -> Int8:
        """Anything but the prefix may go at any time."""
        tiers = arrival_tiers(block, np.zeros(len(block), np.bool_))
        tiers[tiers != Tier.PINNED] = Tier.SCORED
        return tiers

    def evict(self, view: LedgerView, low: int) -> Bool:
        """By lot, the same for the same stream."""
        lots = np.random.default_rng(int(view.order[-1])).random(len(view))
        return drop_all_but_best(view, lots, low)

    def why_kept(self, view: LedgerView) -> Reasons:
        """Chance."""
        return why_kept_but_best(view, {}, "lot")

    def why_dropped(self, view: LedgerView, gone: Bool) -> Reasons:
        """Chance."""
        return why_dropped_but_best(view, gone, "lot")


def policies() -> dict[str, Policy]:
    """All policies of the core, and eviction by lot."""
    return {name: make() for name, make in POLICIES.items()} | {"random": RandomEviction()}


class TimedFrontend:
    """A trace that counts the processor time spent in it, which is not the core's."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self.elapsed = trace, 0.0

    def unit(self, media: UnitMedia, cursor: Any) -> Any:
        """The trace's unit."""
        start = time.thread_time()
        found = self._trace.unit(media, cursor)
        self.elapsed += time.thread_time() - start
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)


@dataclass
class Run:
    """What a stream did, a row a unit, taken when the unit had closed.

    Attributes:
        cells, pages, span, moved: ``int64[u]``; pages and span in pages, moved cells so far.
        milliseconds: ``float64[u]``, deciding and planning of the unit.
        filled: first unit at which the policy evicted; as many as there are units if none did.
        evictions: how many units ended with an eviction.
    """

    trace: str
    policy: str
    layout: str
    budget: int
    bytes_a_cell: int
    ended: str = ""
    cells: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    pages: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    span: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    moved: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    milliseconds: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    filled: int = 0
    evictions: int = 0
    peak_span: int = 0
    ledger_bytes: int = 0

    @property
    def ratio(self) -> npt.NDArray[np.float64]:
        """Pages over the fewest that the cells could be in, since the window has filled."""
        return (self.pages / np.ceil(self.cells / PAGE))[self.filled :]

    @property
    def average(self) -> float:
        """Mean ratio over the second half of what :attr:`ratio` covers: sinks have gathered."""
        return float(self.ratio[self.ratio.size // 2 :].mean()) if self.ratio.size else math.nan

    @property
    def worst(self) -> float:
        """Largest ratio since the window has filled."""
        return float(self.ratio.max()) if self.ratio.size else math.nan

    def at_tokens(self, count: int) -> int:
        """The first unit at whose end the stream has had ``count`` tokens."""
        return int(np.searchsorted(self.tokens, count).clip(max=self.tokens.size - 1))

    def row(self, part: str) -> dict[str, Any]:
        """For JSON: the state at the end and over the stream."""
        last = slice(self.filled, None)
        return {
            "part": part,
            "stream": self.trace,
            "policy": self.policy,
            "layout": self.layout,
            "high": self.budget,
            "low": low_watermark(self.budget),
            "units": int(self.cells.size),
            "ended": self.ended,
            "evictions": self.evictions,
            "cells": int(self.cells[-1]),
            "pages": int(self.pages[-1]),
            "span": int(self.span[-1]),
            "peak_span": self.peak_span,
            "waste_cells": int(self.pages[-1] * PAGE - self.cells[-1]),
            "pages_ratio_average": _rounded(self.average),
            "pages_ratio_worst": _rounded(self.worst),
            "span_ratio_average": _rounded(np.mean(self.span[last] * PAGE / self.cells[last]))
            if self.filled < self.cells.size
            else None,
            "cells_moved_a_unit": round(float(self.moved[-1]) / self.cells.size, 2),
            "bytes_moved": int(self.moved[-1]) * self.bytes_a_cell,
            "plan_ms_median": _rounded(np.median(self.milliseconds[last]))
            if self.filled < self.cells.size
            else _rounded(np.median(self.milliseconds)),
            "ledger_bytes": self.ledger_bytes,
        }


class Stream:
    """A session on a trace, advanced unit by unit."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        layout: Layout,
        budget: int,
        *,
        frame: int | None = FRAME,
        chunk: int = CHUNK,
        label: str | None = None,
    ) -> None:
        """A fresh stream. ``frame`` None means positions without end: one frame."""
        self.trace, self._backend = trace, NullBackend()
        self._frontend = TimedFrontend(trace)
        text = trace.text_config
        if frame is None:
            text = replace(text, max_positions=1 << 30)
        self.session = Session(
            Model(self._backend, self._frontend, text, trace.name),  # type: ignore[arg-type]
            budget=budget,
            retention=policy,
            layout=layout,
            max_tokens=ANSWER,
            prefill_chunk=chunk,
            frame=frame or 1 << 28,
            on_event=self._listen,
        )
        # What a recording needs is no part of deciding and planning.
        self.session._digest = _NoDigest()  # type: ignore[assignment]
        self._unit, self._evicted, self._seen = 0, False, 0
        self._rows: list[tuple[float, ...]] = []
        name = label or layout.name
        self.run = Run(trace.name, policy.name, name, budget, cell_bytes(text, 2))
        self.run.filled = trace.units

    def advance(self) -> float:
        """Take one unit in, and the question after it; returns the unit's milliseconds.

        Raises:
            BudgetError: the policy cannot go on.
        """
        index, seconds = self._unit, self.trace.seconds
        media = UnitMedia(index * seconds, (index + 1) * seconds)
        outside = self._backend.seconds + self._frontend.elapsed
        start = time.thread_time()
        self.session.append(media)
        spent = time.thread_time() - start
        spent -= self._backend.seconds + self._frontend.elapsed - outside
        usage, tables = self.session._tables.usage(), self.session._tables
        tokens = self.session._ledger.next_order
        self._rows.append(
            (usage.cells, usage.pages, usage.span, tables.moved_cells, spent * 1e3, tokens)
        )
        if self._evicted:
            self.run.filled = min(self.run.filled, index)
            self.run.evictions += 1
        turn = self.trace.question_after(index)
        if turn:
            self.session.ask("?" * turn[0], max_tokens=turn[1])
        self._evicted, self._unit = False, index + 1
        return spent * 1e3

    def finish(self) -> Run:
        """Run to the trace's end, or until the policy cannot go on."""
        try:
            while self._unit < self.trace.units:
                self.advance()
        except BudgetError as error:
            self.run.ended = str(error).split(",")[0]
        columns = np.asarray(self._rows, np.float64).reshape(-1, 6).T
        run = self.run
        run.cells, run.pages, run.span, run.moved = columns[:4].astype(np.int64)
        run.milliseconds, run.tokens = columns[4], columns[5].astype(np.int64)
        run.peak_span = self.session.summary()["kv"]["peak_span"] // PAGE
        run.filled = min(run.filled, run.cells.size)
        run.ledger_bytes = ledger_bytes(self.session)
        return run

    def _listen(self, event: dict[str, Any]) -> None:
        self._evicted |= event["event"] == "evict"


class _NoDigest:
    def add(self, plan: Any) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


def run(trace: Trace, policy: Policy, layout: Layout, budget: int, **settings: Any) -> Run:
    """A whole stream."""
    return Stream(trace, policy, layout, budget, **settings).finish()


def ledger_bytes(session: Session) -> int:
    """Bytes that the ledger holds, spare room included."""
    ledger = session._ledger
    return sum(c.nbytes for c in ledger._columns.values()) + ledger._cells.nbytes


def alternate(one: Stream, two: Stream, units: int) -> Iterator[tuple[float, float]]:
    """Milliseconds of both, unit by unit in turn, so that a busy machine slows both alike."""
    for _ in range(units):
        yield one.advance(), two.advance()


def _rounded(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else round(number, 4)
