"""The stream loop: units in, questions answered, the cache inside its budget.

If anything raises inside a unit or a turn, what it had appended is taken back and the stream goes
on from where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from omni_core.backend import PAGE, Backend
from omni_core.budget import default_budget, machine_bytes
from omni_core.cache import Cache, Gone, Logits, by_modality, check_counts, named
from omni_core.errors import BackendError, BudgetError, MediaError, OmniError, RecordingError
from omni_core.frames import QUESTION, check_range
from omni_core.frontend.base import Frontend, UnitMedia
from omni_core.model_config import TextConfig
from omni_core.paging import Layout
from omni_core.paging.table import PageMap
from omni_core.plans import Plan, PlanDigest
from omni_core.recording import Recorder
from omni_core.retention import OmniPick, Policy, policy
from omni_core.sampling import draw
from omni_core.units import TokenBlock
from omni_core.watcher import ClosedUnit, Watcher

Event = dict[str, Any]
_MARKUP = 16
"""Cells for the markup that ends a turn and opens the next."""
SYSTEM = "You are a helpful assistant who watches and listens, and answers briefly."
"""The system prompt where none is given."""


@dataclass(frozen=True)
class Model:
    """A loaded model: the backend that runs it and the frontend that feeds it.

    Attributes:
        trained: False for random weights, whose answers mean nothing.
        omnipick: the policy of that name as it suits the model: what its checkpoint says of it.
    """

    backend: Backend
    frontend: Frontend
    text: TextConfig
    name: str
    trained: bool = True
    omnipick: OmniPick = field(default_factory=OmniPick)

    def policy(self, retention: str | Policy) -> Policy:
        """The policy of a name, as it suits the model."""
        if retention == self.omnipick.name:
            return self.omnipick
        return policy(retention) if isinstance(retention, str) else retention


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
        check_counts(prefill_chunk=prefill_chunk, groups=groups, max_tokens=max_tokens, frame=frame)
        if not 0 <= temperature < float("inf"):
            raise OmniError(f"temperature is {temperature}, expected 0 or more")
        self.model = model
        element = model.backend.element
        if budget is None:
            budget = default_budget(model.text, element, machine_bytes())
        self.budget = budget
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed
        self._emit_to, self._recorder, self._watcher = on_event, recorder, watcher
        prefix, self._cursor = model.frontend.open(system)
        self._cache = Cache(
            model.backend,
            model.text,
            budget=budget,
            retention=model.policy(retention),
            layout=layout,
            prefix=len(prefix),
            unit=model.frontend.largest_unit,
            answer=max_tokens,
            chunk=prefill_chunk,
            groups=groups,
            frame=frame,
            watcher=watcher,
            on_plan=self._keep,
            on_event=self._emit if on_event else None,
        )
        self.policy, self.layout = self._cache.policy, self._cache.layout
        self._tables, self._ledger = self._cache.tables, self._cache.ledger
        if recorder:
            recorder.begin(
                {
                    "model": model.name,
                    "backend": model.backend.name,
                    "device": model.backend.device,
                    "element": element,
                    "arena": asdict(self._tables.arena),
                    "budget": self.budget,
                    "retention": self.policy.name,
                    "layout": self.layout.name,
                    "system": system,
                    "max_tokens": max_tokens,
                    "temperature": temperature,
                    "seed": seed,
                }
            )
        self._digest = PlanDigest()
        self._time = 0.0
        self._totals = dict.fromkeys(("units", "answers", "vision", "audio", "text"), 0)
        self._stopped = False
        self._cache.open(prefix)
        self._totals["text"] += len(prefix)

    def append(self, media: UnitMedia) -> None:
        """Take one unit in. If the frontend, backend or policy raises, all is as it was before.

        Raises:
            OmniError: what a frontend, backend or policy says.
        """
        check_time(media, self._time)
        with self._whole():
            tokens, cursor = self.model.frontend.unit(media, self._cursor)
            self._record(lambda recorder: recorder.unit(media))
            embeddings = self.model.backend.encode(tokens.vision, tokens.audio)
            self._cache.make_room(len(tokens.block))
            self._cache.open_frame(self._cursor.position, tokens.block)
            # Nothing here reads a unit's logits, but a replay compares them.
            last = [len(tokens.block) - 1] if self._recorder is not None else []
            self._cache.step(tokens.block, embeddings=embeddings, logits=last)
            self._cursor = cursor
            gone = self._cache.decide()
        counts = named(by_modality(tokens.block.modality))
        for name, count in counts.items():
            self._totals[name] += count
        self._totals["units"] += 1
        self._time = media.stop
        self._close_unit(gone)
        kv, measured = self._cache.usage(), self.model.backend.memory().measured
        self._emit("unit", unit=self._cache.unit - 1, tokens=counts, kv=kv, memory=measured)

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
        number, order = self._cache.unit, self._ledger.next_order
        self._stopped = False
        with self._whole(keep=not branch):
            block, cursor = self.model.frontend.question(question, self._cursor)
            self._check_question(len(block), limit)
            self._cache.make_room(len(block) + limit + QUESTION)
            self._cache.open_frame(self._cursor.position)
            generator = np.random.default_rng([self._seed, self._ledger.next_order])
            logits = self._cache.step(block, logits=[len(block) - 1])
            self._cursor = cursor
            text, ttft = self._answer(logits, limit, generator, start, branch)
            gone = None if branch else self._cache.decide()
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
            "evicted": self._cache.evicted,
            "position": self._cursor.position,
            "kv": self._cache.usage()
            | {
                "most_cells": self._cache.most_cells,
                "peak_cells": self._cache.peak_cells,
                "peak_span": self._cache.peak_span * PAGE,
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
                logits = self._cache.step(block, logits=[len(block) - 1])
        if not branch:
            block, self._cursor = frontend.resume(self._cursor)
            self._cache.step(TokenBlock.join([*pending, block]))
        text = frontend.text(ids)
        if text != shown:
            self._emit("token", text=text[len(shown) :])
        return text, round(ttft, 3)

    @contextmanager
    def _whole(self, keep: bool = True) -> Iterator[None]:
        """As :meth:`Cache.whole`, with the cursor."""
        cursor, done = self._cursor, False
        try:
            with self._cache.whole(keep):
                yield
                done = keep
        finally:
            if not done:
                self._cursor = cursor

    def _close_unit(self, gone: Gone | None) -> None:
        arrived = self._cache.close_unit(gone)
        if self._watcher:
            view = self._ledger.view()
            self._watcher.closed(
                ClosedUnit(
                    self._cache.unit - 1,
                    self._time,
                    arrived,
                    view,
                    self.policy.why_kept(view),
                    self._tables.usage(),
                    self.page_maps(),
                )
            )

    def _check_question(self, tokens: int, answer: int) -> None:
        prefix, low = self._cache.prefix, self._cache.low
        check_range(self.model.text.max_positions, prefix, tokens, answer)
        needed = prefix + tokens + answer + _MARKUP
        if needed > low:
            raise BudgetError(
                f"a question of {tokens} tokens with an answer of up to {answer} needs {needed} "
                f"cells with the prefix, and the low watermark is {low}: ask in fewer words, "
                "or raise --budget"
            )

    def _keep(self, plan: Plan, logits: Logits | None) -> None:
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

    def _emit(self, event: str, **fields: Any) -> None:
        self._notify({"event": event, "t": round(self._time, 3), **fields})

    def _notify(self, event: Event) -> None:
        if self._emit_to:
            self._emit_to(event)


def check_time(media: UnitMedia, now: float) -> None:
    """Refuse a unit that does not follow a stream's end at ``now`` seconds.

    Raises:
        MediaError: with the times.
    """
    if not now - 1e-3 <= media.start < media.stop:
        raise MediaError(
            f"a unit from {media.start:g} s to {media.stop:g} s came when the stream was at "
            f"{now:g} s; units follow each other in time"
        )
