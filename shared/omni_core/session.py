"""The stream loop: units in, questions answered, the cache inside its budget.

A step is planned, run by the backend, then committed. If anything raises inside a unit or a turn,
what it had appended is taken back and the stream goes on from where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE, Backend, MovePlan, StepPlan
from omni_core.budget import (
    QUESTION,
    cell_bytes,
    class_slack,
    default_budget,
    low_watermark,
    machine_bytes,
    plan_arena,
)
from omni_core.errors import BudgetError, OmniError
from omni_core.frontend.base import Frontend, UnitMedia
from omni_core.ledger import Ledger
from omni_core.model_config import TextConfig
from omni_core.paging.table import PageTables
from omni_core.plans import PlanDigest
from omni_core.recording import Recorder
from omni_core.retention import Policy, policy
from omni_core.sampling import draw
from omni_core.units import Modality, Tier, TokenBlock

Event = dict[str, Any]
Logits = npt.NDArray[np.float32]
SYSTEM = "You are a helpful assistant who watches and listens, and answers briefly."
"""The system prompt where none is given."""


@dataclass(frozen=True)
class Model:
    """A loaded model: the backend that runs it and the frontend that feeds it.

    Attributes:
        trained: False for random weights, whose answers mean nothing.
    """

    backend: Backend
    frontend: Frontend
    text: TextConfig
    name: str
    trained: bool = True


class Session:
    """One stream on one model."""

    def __init__(
        self,
        model: Model,
        *,
        budget: int | None = None,
        retention: str | Policy = "omnipick",
        system: str = SYSTEM,
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        prefill_chunk: int = 512,
        groups: int = 1,
        on_event: Callable[[Event], None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Allocate the arena and read the system prompt.

        Args:
            model: what runs.
            budget: cells alive at a unit's end; None takes a default for the machine.
            retention: a policy or its name.
            system: system prompt, kept for ever.
            max_tokens: longest answer.
            temperature: 0 takes the likeliest token.
            seed: of the draws, where the temperature is above 0.
            prefill_chunk: most new tokens in one forward pass.
            groups: layer groups with page tables of their own.
            on_event: called with each event: a dict with ``event``, and ``t`` in stream seconds.
            recorder: keeps media and plans.

        Raises:
            BudgetError: the budget cannot hold the prefix and a unit, or the machine the budget.
        """
        self.model = model
        self.policy = policy(retention) if isinstance(retention, str) else retention
        element = model.backend.element
        if budget is None:
            budget = default_budget(model.text, element, machine_bytes())
        self.budget = budget
        self._cell_bytes = cell_bytes(model.text, element)
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed
        self._chunk, self._emit_to, self._recorder = prefill_chunk, on_event, recorder
        prefix, self._cursor = model.frontend.open(system)
        layout = plan_arena(
            model.text,
            budget=self.budget,
            prefix=len(prefix),
            unit=model.frontend.largest_unit,
            answer=max_tokens,
            element=element,
            groups=groups,
        )
        model.backend.allocate(layout)
        if recorder:
            recorder.begin(
                {
                    "model": model.name,
                    "backend": model.backend.name,
                    "device": model.backend.device,
                    "element": element,
                    "layout": asdict(layout),
                    "budget": self.budget,
                    "retention": self.policy.name,
                    "system": system,
                    "max_tokens": max_tokens,
                    "temperature": temperature,
                    "seed": seed,
                }
            )
        self._tables, self._ledger = PageTables(layout), Ledger(groups)
        self._digest = PlanDigest()
        self._unit, self._turn, self._time = 0, 0, 0.0
        self._totals = dict.fromkeys(("units", "answers", "vision", "audio", "text", "evicted"), 0)
        self._peak_cells = self._peak_span = 0
        self._stopped = self._warned = False
        self._step(prefix, unit=-1)
        self._totals["text"] += len(prefix)

    def append(self, media: UnitMedia) -> None:
        """Take one unit in. If it raises, the stream is as it was before.

        Raises:
            OmniError: what a frontend, backend or policy says.
        """
        with self._whole():
            if self._recorder:
                self._recorder.unit(self._unit, media)
            tokens, cursor = self.model.frontend.unit(media, self._cursor)
            embeddings = self.model.backend.encode(tokens.vision, tokens.audio)
            self._make_room(len(tokens.block))
            self._step(tokens.block, unit=self._unit, embeddings=embeddings)
            self._cursor = cursor
        senses = np.bincount(tokens.block.modality, minlength=len(Modality))
        counts = {kind.name.lower(): int(senses[kind]) for kind in Modality}
        for name, count in counts.items():
            self._totals[name] += count
        self._totals["units"] += 1
        self._time = media.stop
        self._close_unit()
        measured = self.model.backend.memory().measured
        self._emit("unit", unit=self._unit - 1, tokens=counts, kv=self._kv(), memory=measured)
        self._warn_about_positions()

    def ask(self, question: str, *, max_tokens: int | None = None, branch: bool = False) -> str:
        """Ask about the stream so far.

        Args:
            question: text.
            max_tokens: longest answer; at most the session's.
            branch: leave no trace: order, positions and cache are as before.

        Returns:
            The answer.
        """
        start = time.perf_counter()
        limit = self._max_tokens if max_tokens is None else min(max_tokens, self._max_tokens)
        number, order = self._unit, self._ledger.next_order
        with self._whole(keep=not branch):
            block, cursor = self.model.frontend.question(question, self._cursor)
            self._make_room(len(block) + limit + QUESTION)
            generator = np.random.default_rng([self._seed, self._ledger.next_order])
            logits = self._step(block, unit=self._unit, last=True)
            self._cursor = cursor
            text, ttft = self._answer(logits, limit, generator, start, branch)
        self._emit("answer", unit=number, question=question, text=text, ttft_ms=ttft)
        if not branch:
            self._turn += 1
            self._totals["answers"] += 1
            self._totals["text"] += self._ledger.next_order - order
            self._close_unit()
        return text

    def interrupt(self) -> None:
        """End the running answer after its current token. May be called from a signal handler."""
        self._stopped = True

    def summary(self) -> Event:
        """Totals so far, as the ``summary`` event."""
        memory = self.model.backend.memory()
        return {
            "event": "summary",
            "t": round(self._time, 3),
            "model": self.model.name,
            "trained": self.model.trained,
            "backend": self.model.backend.name,
            "device": self.model.backend.device,
            "retention": self.policy.name,
            "units": self._totals["units"],
            "answers": self._totals["answers"],
            "tokens": {name: self._totals[name] for name in ("vision", "audio", "text")},
            "evicted": self._totals["evicted"],
            "position": self._cursor.position,
            "kv": self._kv()
            | {"peak_cells": self._peak_cells, "peak_span": self._peak_span * PAGE},
            "memory": {
                "measured": memory.measured,
                "cached": memory.cached,
                "peak": memory.peak,
                "accounted": memory.accounted,
                "source": memory.source,
            },
            "plans": self._digest.hexdigest(),
        }

    def close(self) -> Event:
        """Emit and return the summary, and close the recording."""
        summary = self.summary()
        self._notify(summary)
        if self._recorder:
            self._recorder.close()
        return summary

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._recorder:
            self._recorder.close()

    def _answer(
        self, logits: Logits, limit: int, generator: np.random.Generator, start: float, branch: bool
    ) -> tuple[str, float]:
        frontend = self.model.frontend
        ids: list[int] = []
        shown, ttft = "", 0.0
        pending: list[TokenBlock] = []
        self._stopped = False
        while len(ids) < limit and not self._stopped:
            token = draw(logits[0, 0], self._temperature, generator)
            ttft = ttft or (time.perf_counter() - start) * 1e3
            if token in frontend.stop_tokens:
                break
            ids.append(token)
            text = frontend.text(ids)
            # A character may be spread over tokens: show it once it is whole.
            if not text.endswith("\ufffd") and text != shown:
                self._emit("token", text=text[len(shown) :])
                shown = text
            block, self._cursor = frontend.answer(token, self._cursor)
            block = replace(block, offset=np.full_like(block.offset, len(ids) - 1))
            if len(ids) == limit:
                pending.append(block)
            else:
                logits = self._step(block, unit=self._unit, last=True)
        if not branch:
            block, self._cursor = frontend.resume(self._cursor)
            self._step(TokenBlock.join([*pending, block]), unit=self._unit)
        return frontend.text(ids), round(ttft, 3)

    @contextmanager
    def _whole(self, keep: bool = True) -> Iterator[None]:
        """Take back what was appended inside, if it raises or is not to be kept."""
        order, cursor = self._ledger.next_order, self._cursor
        done = False
        try:
            yield
            done = keep
        finally:
            if not done:
                self._tables.release(self._ledger.truncate(order))
                self._cursor = cursor

    def _step(
        self, block: TokenBlock, *, unit: int, embeddings: Any = None, last: bool = False
    ) -> Logits:
        """Run a block in chunks; logits ``[streams, 1, vocab]`` of its last token if wanted."""
        logits: Logits = np.zeros((1, 0, 0), np.float32)
        for start in range(0, len(block), self._chunk):
            part = block.slice(start, min(start + self._chunk, len(block)))
            ends = start + len(part) == len(block)
            tiers = self.policy.tiers(part)
            placement = self._tables.place(tiers, part.modality)
            order = np.arange(len(part), dtype=np.int64) + self._ledger.next_order
            plan = StepPlan(
                tokens=part.tokens[None],
                rows=part.rows,
                positions=part.positions,
                order=order,
                counts=np.ones(len(part), np.int32),
                cells=placement.cells,
                logits=np.asarray([len(part) - 1] if last and ends else [], np.int32),
                delta=placement.delta,
            )
            embedded = bool((part.rows >= 0).any())
            logits = self.model.backend.forward(plan, embeddings if embedded else None)
            self._tables.take(placement)
            self._ledger.append(part, unit, self._turn, tiers, placement.cells)
            self._keep(plan, logits)
        return logits

    def _close_unit(self) -> None:
        """End a unit or a turn: evict, then move what it pays to move."""
        self._unit += 1
        self._ledger.relabel(Tier.OPEN, Tier.TRANSIENT)
        self._tables.relabel(Tier.OPEN, Tier.TRANSIENT)
        usage = self._tables.usage()
        self._peak_cells = max(self._peak_cells, usage.cells)
        self._peak_span = max(self._peak_span, usage.span)
        if len(self._ledger) > self.budget:
            self._evict(low_watermark(self.budget))
            self._migrate(PAGE // 2)

    def _evict(self, low: int) -> None:
        view = self._ledger.view()
        gone = self.policy.evict(view, low)
        left = len(view) - int(gone.sum())
        if left > low:
            raise OmniError(
                f"retention {self.policy.name} left {left} cells where {low} were asked for: a "
                "fault in the policy"
            )
        units = view.unit[gone]
        senses = np.bincount(view.modality[gone], minlength=len(Modality))
        counts = {kind.name.lower(): int(senses[kind]) for kind in Modality}
        span = [int(units.min()), int(units.max())] if units.size else []
        for group in range(self._tables.layout.groups):
            alive = self._ledger.view().cells[group] >= 0
            self._tables.release(self._ledger.drop(group, gone[: alive.size] & alive))
        self._totals["evicted"] += int(gone.sum())
        self._emit("evict", units=span, tokens=counts, cells=len(self._ledger))

    def _migrate(self, worth: int) -> None:
        plan = self._tables.plan_moves(worth)
        if plan is None:
            return
        self.model.backend.move(plan)
        self._tables.moved(plan)
        self._ledger.move(plan.source, plan.target)
        self._keep(plan, None)

    def _make_room(self, tokens: int) -> None:
        """Free pages for new tokens before a unit begins: migrate, then evict, then refuse."""
        groups = self._tables.layout.groups
        needed = groups * -(-tokens // PAGE) + class_slack(groups)
        if self._tables.free_pages() >= needed:
            return
        self._migrate(PAGE)
        if self._tables.free_pages() >= needed:
            return
        self._evict(min(low_watermark(self.budget), max(0, len(self._ledger) - tokens)))
        self._migrate(PAGE)
        if self._tables.free_pages() < needed:
            raise BudgetError(
                f"{tokens} new tokens do not fit: of {needed} pages that they need, "
                f"{self._tables.free_pages()} are free after eviction; raise --budget"
            )

    def _keep(self, plan: StepPlan | MovePlan, logits: Logits | None) -> None:
        self._digest.add(plan)
        if self._recorder:
            self._recorder.plan(plan, logits)

    def _warn_about_positions(self) -> None:
        limit = self.model.text.max_positions
        if not self._warned and self._cursor.position > limit:
            self._warned = True
            self._emit(
                "warning",
                message=f"the stream has passed position {limit}, the end of the range that the "
                "model was trained on: answers may get worse",
            )

    def _kv(self) -> dict[str, int]:
        usage = self._tables.usage()
        return {
            "cells": usage.cells,
            "pages": usage.pages,
            "span": usage.span * PAGE,
            "bytes": usage.pages * PAGE * self._cell_bytes // self._tables.layout.groups,
            "budget": self.budget,
        }

    def _emit(self, event: str, **fields: Any) -> None:
        self._notify({"event": event, "t": round(self._time, 3), **fields})

    def _notify(self, event: Event) -> None:
        if self._emit_to:
            self._emit_to(event)
