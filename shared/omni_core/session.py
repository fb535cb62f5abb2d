"""The stream loop: units in, questions answered, the cache inside its budget.

A step is planned, run by the backend, then committed. If anything raises inside a unit or a turn,
what it had appended is taken back and the stream goes on from where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE, Backend, MovePlan, StepPlan
from omni_core.budget import (
    cell_bytes,
    class_slack,
    default_budget,
    low_watermark,
    machine_bytes,
    plan_arena,
)
from omni_core.errors import (
    BackendError,
    BudgetError,
    MediaError,
    OmniError,
    PlanError,
    RecordingError,
)
from omni_core.frames import QUESTION, Frames, check_range, most_frames
from omni_core.frontend.base import Frontend, UnitMedia
from omni_core.ledger import Ledger
from omni_core.model_config import TextConfig
from omni_core.paging import Layout
from omni_core.paging import layout as named_layout
from omni_core.paging.table import PageMap, PageTables
from omni_core.plans import PlanDigest
from omni_core.recording import Recorder
from omni_core.retention import Policy, policy
from omni_core.sampling import draw
from omni_core.units import Int8, Int32, Int64, Modality, Role, Tier, TokenBlock
from omni_core.watcher import ClosedUnit, Watcher

Event = dict[str, Any]
Logits = npt.NDArray[np.float32]
_MARKUP = 16
"""Cells for the markup that ends a turn and opens the next."""
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
        layout: str | Layout = "page",
        system: str = SYSTEM,
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        prefill_chunk: int = 512,
        groups: int = 1,
        frame: int | None = None,
        on_event: Callable[[Event], None] | None = None,
        recorder: Recorder | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        """Allocate the arena and read the system prompt.

        Args:
            model: what runs.
            budget: cells alive at a unit's end; None takes a default for the machine.
            retention: a policy or its name.
            layout: where tokens are placed, or its name.
            system: system prompt, kept for ever.
            max_tokens: longest answer.
            temperature: 0 takes the likeliest token.
            seed: of the draws, where the temperature is above 0.
            prefill_chunk: most new tokens in one forward pass.
            groups: layer groups with page tables of their own.
            frame: positions after which a position frame is closed; None takes the default.
            on_event: called with each event: a dict with ``event``, and ``t`` in stream seconds.
            recorder: keeps media and plans.
            watcher: looks on, to explain or to measure.

        Raises:
            BudgetError: the budget cannot hold the prefix and a unit, or the machine the budget.
        """
        _check_settings(prefill_chunk, groups, max_tokens, temperature, frame)
        self.model = model
        self.policy = policy(retention) if isinstance(retention, str) else retention
        self.layout = named_layout(layout) if isinstance(layout, str) else layout
        element = model.backend.element
        if budget is None:
            budget = default_budget(model.text, element, machine_bytes())
        self.budget = budget
        self._cell_bytes = cell_bytes(model.text, element)
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed
        self._chunk, self._emit_to, self._recorder = prefill_chunk, on_event, recorder
        self._watcher = watcher
        self._scored = self.policy.scored or (watcher is not None and watcher.mass)
        prefix, self._cursor = model.frontend.open(system)
        arena = plan_arena(
            model.text,
            budget=self.budget,
            prefix=len(prefix),
            unit=model.frontend.largest_unit,
            answer=max_tokens,
            element=element,
            groups=groups,
            frame=frame,
        )
        self._slack = class_slack(groups, most_frames(model.text.max_positions, frame, budget))
        check_range(model.text.max_positions, len(prefix), model.frontend.largest_unit, max_tokens)
        self._low = low_watermark(self.budget)
        self._prefix = len(prefix)
        model.backend.allocate(arena)
        self._allocation = model.backend.allocations
        if recorder:
            recorder.begin(
                {
                    "model": model.name,
                    "backend": model.backend.name,
                    "device": model.backend.device,
                    "element": element,
                    "arena": asdict(arena),
                    "budget": self.budget,
                    "retention": self.policy.name,
                    "layout": self.layout.name,
                    "system": system,
                    "max_tokens": max_tokens,
                    "temperature": temperature,
                    "seed": seed,
                }
            )
        self._tables, self._ledger = PageTables(arena, self.layout), Ledger(groups)
        self._frames = Frames.begin(model.text.max_positions, frame)
        self._digest = PlanDigest()
        self._unit, self._turn, self._time = 0, 0, 0.0
        self._totals = dict.fromkeys(("units", "answers", "vision", "audio", "text", "evicted"), 0)
        self._most_cells = self._peak_cells = self._peak_span = 0
        self._stopped = False
        self._step(prefix, unit=-1)
        self._totals["text"] += len(prefix)

    def append(self, media: UnitMedia) -> None:
        """Take one unit in. If the frontend, backend or policy raises, all is as it was before.

        Raises:
            OmniError: what a frontend, backend or policy says.
        """
        self._check_time(media)
        with self._whole():
            tokens, cursor = self.model.frontend.unit(media, self._cursor)
            self._record(lambda recorder: recorder.unit(media))
            embeddings = self.model.backend.encode(tokens.vision, tokens.audio)
            self._make_room(len(tokens.block))
            full = partial(self._full_of_sinks, tokens.block)
            self._frames = self._frames.at(self._cursor.position, full)
            # Nothing here reads a unit's logits, but a replay compares them.
            recorded = self._recorder is not None
            self._step(tokens.block, unit=self._unit, embeddings=embeddings, last=recorded)
            self._cursor = cursor
            gone = self._decide()
        senses = self._by_modality(tokens.block.modality)
        counts = {kind.name.lower(): int(senses[kind]) for kind in Modality}
        for name, count in counts.items():
            self._totals[name] += count
        self._totals["units"] += 1
        self._time = media.stop
        self._close_unit(gone)
        measured = self.model.backend.memory().measured
        self._emit("unit", unit=self._unit - 1, tokens=counts, kv=self._kv(), memory=measured)

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
        self._stopped = False
        with self._whole(keep=not branch):
            block, cursor = self.model.frontend.question(question, self._cursor)
            self._check_question(len(block), limit)
            self._make_room(len(block) + limit + QUESTION)
            self._frames = self._frames.at(self._cursor.position)
            generator = np.random.default_rng([self._seed, self._ledger.next_order])
            logits = self._step(block, unit=self._unit, last=True)
            self._cursor = cursor
            text, ttft = self._answer(logits, limit, generator, start, branch)
            gone = None if branch else self._decide()
        self._emit("answer", unit=number, question=question, text=text, ttft_ms=ttft)
        if not branch:
            self._totals["answers"] += 1
            self._totals["text"] += self._ledger.next_order - order
            self._close_unit(gone)
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
            | {
                "most_cells": self._most_cells,
                "peak_cells": self._peak_cells,
                "peak_span": self._peak_span * PAGE,
            },
            "memory": {
                "measured": memory.measured,
                "cached": memory.cached,
                "peak": memory.peak,
                "accounted": memory.accounted,
                "source": memory.source,
            },
            "plans": self._digest.hexdigest(),
        }

    def page_maps(self) -> tuple[PageMap, ...]:
        """The pages of each layer group: what lies where, and how full."""
        return tuple(map(self._tables.page_map, range(self._tables.arena.groups)))

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
        while len(ids) < limit and not self._stopped:
            if not np.isfinite(logits).all():
                raise BackendError(
                    "the model's logits are not finite; the weights are damaged, or overflow in "
                    "this number format: try --weights f32 or bf16"
                )
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
        text = frontend.text(ids)
        if text != shown:
            self._emit("token", text=text[len(shown) :])
        return text, round(ttft, 3)

    @contextmanager
    def _whole(self, keep: bool = True) -> Iterator[None]:
        """Take back what was appended inside, if it raises or is not to be kept."""
        order = self._ledger.next_order
        masses = self._ledger.masses() if self._scored else None
        cursor, frames, turn = self._cursor, self._frames, self._turn
        done = False
        try:
            yield
            done = keep
        finally:
            if not done:
                self._tables.release(self._ledger.truncate(order))
                if masses is not None:
                    self._ledger.restore_masses(*masses)
                self._cursor, self._frames, self._turn = cursor, frames, turn

    def _step(
        self, block: TokenBlock, *, unit: int, embeddings: Any = None, last: bool = False
    ) -> Logits:
        """Run a block in chunks; logits ``[streams, 1, vocab]`` of its last token if wanted."""
        logits: Logits = np.zeros((1, 0, 0), np.float32)
        turns = self._turns(block)
        tiers = self.policy.tiers(block)
        for start in range(0, len(block), self._chunk):
            part = block.slice(start, min(start + self._chunk, len(block)))
            ends = start + len(part) == len(block)
            rows = slice(start, start + len(part))
            placement = self._tables.place(tiers[rows], part.modality, self._frames.current)
            positions = self._frames.local(part.positions)
            live = self._tables.frames()
            order = np.arange(len(part), dtype=np.int64) + self._ledger.next_order
            plan = StepPlan(
                tokens=part.tokens[None],
                rows=part.rows,
                positions=positions,
                order=order,
                counts=np.ones(len(part), np.int32),
                cells=placement.cells,
                shifts=self._frames.shifts(live, int(positions.max())),
                logits=np.asarray([len(part) - 1] if last and ends else [], np.int32),
                mass=self._scored,
                delta=placement.delta,
            )
            embedded = bool((part.rows >= 0).any())
            self._check_arena()
            self._tables.expect(placement.cells)
            result = self.model.backend.forward(plan, embeddings if embedded else None)
            logits = result.logits
            self._tables.take(placement)
            self._ledger.append(part, unit, turns[rows], placement.cells)
            if result.mass is not None:
                self._ledger.add_mass(result.mass)
            if self._watcher:
                self._watcher.stepped(self._ledger.view(), unit, result.mass)
            self._keep(plan, logits)
        self._turn = int(turns[-1]) if turns.size else self._turn
        return logits

    def _turns(self, block: TokenBlock) -> Int32:
        """The run of units that each token belongs to: an opening bracket begins the next."""
        opens = (block.role == Role.BRACKET) & (block.offset == 0)
        begins = opens & ~np.concatenate([[False], opens[:-1]])
        return (self._turn + np.cumsum(begins)).astype(np.int32)

    def _decide(self) -> npt.NDArray[np.bool_] | None:
        """What the policy evicts now that a unit has ended; None within the budget."""
        if len(self._ledger) <= self.budget:
            return None
        return self._evictable(self._low)

    def _evictable(self, low: int) -> npt.NDArray[np.bool_]:
        gone = self.policy.evict(self._ledger.view(), low)
        left = len(self._ledger) - int(gone.sum())
        if left > low:
            raise OmniError(
                f"retention {self.policy.name} left {left} cells where {low} were asked for: a "
                "fault in the policy"
            )
        return gone

    def _close_unit(self, gone: npt.NDArray[np.bool_] | None) -> None:
        """End a unit or a turn: evict what was decided, then move what it pays to move."""
        view = self._ledger.view()
        arrived = self._by_modality(view.modality[view.unit == self._unit])
        self._unit += 1
        self._tables.relabel(Tier.OPEN, Tier.TRANSIENT)
        far = self._frames.far()
        if len(far) > 1:
            self._tables.join_frames(far)
        self._frames = self._frames.keep(self._tables.frames())
        usage = self._tables.usage()
        self._peak_cells = max(self._peak_cells, usage.cells)
        self._peak_span = max(self._peak_span, usage.span)
        if gone is not None:
            self._evict(gone)
        self._most_cells = max(self._most_cells, len(self._ledger))
        self._migrate()
        if self._watcher:
            view = self._ledger.view()
            self._watcher.closed(
                ClosedUnit(
                    self._unit - 1,
                    self._time,
                    arrived,
                    view,
                    self.policy.why_kept(view),
                    self._tables.usage(),
                    self.page_maps(),
                )
            )

    def _evict(self, gone: npt.NDArray[np.bool_]) -> None:
        view = self._ledger.view()
        units = view.unit[gone]
        senses = self._by_modality(view.modality[gone])
        counts = {kind.name.lower(): int(senses[kind]) for kind in Modality}
        reasons: dict[str, int] = {}
        if self._emit_to or self._watcher:
            why = self.policy.why_dropped(view, gone)
            reasons = {word: int(mask.sum()) for word, mask in why.items() if mask.any()}
            if self._watcher:
                self._watcher.evicting(view, gone, why)
        span = [int(units.min()), int(units.max())] if units.size else []
        for group in range(self._tables.arena.groups):
            alive = self._ledger.view().cells[group] >= 0
            self._tables.release(self._ledger.drop(group, gone[: alive.size] & alive))
        self._totals["evicted"] += int(gone.sum())
        self._emit("evict", units=span, tokens=counts, reasons=reasons, cells=len(self._ledger))

    def _full_of_sinks(self, block: TokenBlock) -> bool:
        """Whether a unit's sinks do not fit the pages of sinks that the current frame has."""
        sinks = np.count_nonzero(self.policy.tiers(block) == Tier.SINK)
        return bool(self._tables.room(Tier.SINK, self._frames.current) < sinks)

    def _migrate(self, urgent: bool = False) -> None:
        plan = self._tables.plan_moves(urgent)
        if plan is None:
            return
        self._check_arena()
        self._tables.expect(np.concatenate([plan.source, plan.target]))
        try:
            self.model.backend.move(plan)
        except Exception as error:
            if np.isin(plan.target, plan.source).any():
                # Cells that were to move on may have been overwritten already.
                raise
            # Nothing depends on this move: the cells stay where they are, and the stream goes on.
            self._emit("warning", message=f"cells could not be moved and stay: {error}")
            return
        self._tables.moved(plan)
        self._ledger.move(plan.source, plan.target)
        self._keep(plan, None)

    def _make_room(self, tokens: int) -> None:
        """Free pages for new tokens before a unit begins: migrate, then evict, then refuse."""
        groups = self._tables.arena.groups
        needed = groups * -(-tokens // PAGE) + self._slack
        if self._tables.free_pages() >= needed:
            return
        self._migrate(urgent=True)
        if self._tables.free_pages() >= needed:
            return
        with suppress(BudgetError):
            self._evict(self._evictable(min(self._low, max(0, len(self._ledger) - tokens))))
        self._migrate(urgent=True)
        if self._tables.free_pages() < needed:
            raise BudgetError(
                f"{tokens} new tokens do not fit: of {needed} pages that they need, "
                f"{self._tables.free_pages()} are free after eviction; raise --budget"
            )

    def _check_arena(self) -> None:
        if self.model.backend.allocations != self._allocation:
            raise PlanError(
                "another session has taken over this model's arena; one model runs one session at "
                "a time: load the model twice, or end this session first"
            )

    def _check_time(self, media: UnitMedia) -> None:
        if not self._time - 1e-3 <= media.start < media.stop:
            raise MediaError(
                f"a unit from {media.start:g} s to {media.stop:g} s came when the stream was at "
                f"{self._time:g} s; units follow each other in time"
            )

    def _check_question(self, tokens: int, answer: int) -> None:
        check_range(self.model.text.max_positions, self._prefix, tokens, answer)
        needed = self._prefix + tokens + answer + _MARKUP
        if needed > self._low:
            raise BudgetError(
                f"a question of {tokens} tokens with an answer of up to {answer} needs {needed} "
                f"cells with the prefix, and the low watermark is {self._low}: ask in fewer words, "
                "or raise --budget"
            )

    @staticmethod
    def _by_modality(modality: Int8) -> Int64:
        return np.bincount(modality, minlength=len(Modality)).astype(np.int64)

    def _keep(self, plan: StepPlan | MovePlan, logits: Logits | None) -> None:
        self._digest.add(plan)
        self._record(lambda recorder: recorder.plan(plan, logits))

    def _record(self, write: Callable[[Recorder], None]) -> None:
        """Record something; a recording that cannot be written ends, and the stream goes on."""
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except RecordingError as error:
            self._recorder = None
            self._emit("warning", message=f"the recording has ended: {error}")

    def _kv(self) -> dict[str, int]:
        usage = self._tables.usage()
        return {
            "cells": usage.cells,
            "pages": usage.pages,
            "span": usage.span * PAGE,
            "bytes": usage.pages * PAGE * self._cell_bytes // self._tables.arena.groups,
            "budget": self.budget,
        }

    def _emit(self, event: str, **fields: Any) -> None:
        self._notify({"event": event, "t": round(self._time, 3), **fields})

    def _notify(self, event: Event) -> None:
        if self._emit_to:
            self._emit_to(event)


def _check_settings(
    chunk: int, groups: int, max_tokens: int, temperature: float, frame: int | None
) -> None:
    counts = {"prefill_chunk": chunk, "groups": groups, "max_tokens": max_tokens}
    for name, value in (counts if frame is None else counts | {"frame": frame}).items():
        if value < 1:
            raise OmniError(f"{name} is {value}, expected 1 or more")
    if not 0 <= temperature < float("inf"):
        raise OmniError(f"temperature is {temperature}, expected 0 or more")
