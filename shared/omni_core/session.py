"""The stream loop: units in, questions answered, the cache inside its budget.

If anything raises inside a unit or a turn, what it had appended is taken back and the stream goes
on from where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.aggregation import Aggregation, Counts
from omni_core.answering import Answer, answer
from omni_core.backend import PAGE
from omni_core.budget import default_budget, machine_bytes
from omni_core.cache import Cache, Logits, by_modality, named
from omni_core.errors import BudgetError, MediaError, RecordingError
from omni_core.evictions import Gone
from omni_core.frames import QUESTION, check_range
from omni_core.frontend.base import Cursor, UnitMedia
from omni_core.layer_budgets.rule import LayerBudgets
from omni_core.ledger import Ledger
from omni_core.model import Model as Model
from omni_core.paging import Layout
from omni_core.paging import layout as named_layout
from omni_core.paging.table import PageMap, PageTables
from omni_core.plans import Plan, PlanDigest
from omni_core.recording import Recorder
from omni_core.retention import Policy
from omni_core.saving import SavedModel, SavedSession, open_saved, write_saved
from omni_core.settings import SYSTEM as SYSTEM
from omni_core.settings import Settings
from omni_core.state import whole
from omni_core.stream_state import (
    arrays,
    cache_state,
    embedding_shapes,
    restore_cache,
    restored_cursor,
    shapes,
)
from omni_core.tracing import NO_TRACE, Tracer
from omni_core.units import TokenBlock
from omni_core.watcher import ClosedUnit, Watcher

Event = dict[str, Any]
_MARKUP = 16
"""Cells for the markup that ends a turn and opens the next."""


class Session:
    """One stream on one model.

    Attributes:
        model: what runs.
        settings: all that decides beside the media and the questions.
        budget, policy, layout: of the settings.
    """

    _cache: Cache
    _cursor: Cursor
    _digest: PlanDigest
    _ledger: Ledger
    _seen: Counts
    _tables: PageTables
    _time: float
    _totals: dict[str, int]

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
        groups: int | None = None,
        frame: int | None = None,
        kv_bits: int = 16,
        seal: str = "recent",
        aggregation: Aggregation | None = None,
        layers: LayerBudgets | None = None,
        on_event: Callable[[Event], None] | None = None,
        recorder: Recorder | None = None,
        watcher: Watcher | None = None,
        tracer: Tracer = NO_TRACE,
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
            groups: layer groups with page tables of their own; None for one, or with budgets by
                layer for one a layer.
            frame: positions after which a position frame is closed; None takes the default.
            kv_bits: of a key or value number: 16, or 4, 3 or 2 where it is sealed.
            seal: what is: ``recent`` leaves the prefix and the newest units in 16 bits, ``all``
                leaves what has not ended.
            aggregation: which vision tokens do not enter, or as one; None where all do.
            layers: how the cells are shared out among layers, which then hold the budget on
                average; None for the same in each.
            on_event: called with each event: a dict with ``event``, and ``t`` in stream seconds.
            recorder: keeps media and plans.
            watcher: looks on, to explain or to measure.
            tracer: measures what takes time.

        Raises:
            BudgetError: the budget cannot hold the prefix and a unit, or the machine the budget.
            OmniError: a setting that cannot be, or a cache that cannot be sealed.
        """
        if budget is None:
            budget = default_budget(model.text, model.backend.element, machine_bytes())
        if groups is None:
            groups = 1 if layers is None else model.text.layers
        settings = Settings(
            budget=budget,
            retention=model.policy(retention),
            layout=named_layout(layout) if isinstance(layout, str) else layout,
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            prefill_chunk=prefill_chunk,
            groups=groups,
            frame=frame,
            kv_bits=kv_bits,
            seal=seal,
            aggregation=aggregation,
            layers=layers,
        )
        prefix = self._open(model, settings, on_event, recorder, watcher, tracer)
        self._cache.open(prefix)
        self._totals["text"] += len(prefix)

    @classmethod
    def resume(
        cls,
        model: Model,
        saved: SavedSession | Path | str,
        *,
        on_event: Callable[[Event], None] | None = None,
        recorder: Recorder | None = None,
        watcher: Watcher | None = None,
        tracer: Tracer = NO_TRACE,
    ) -> Session:
        """Go on where a saved session was, with its settings: its plans go on as if uninterrupted.

        Args:
            model: the one that it ran on; the backend may be the other twin.
            saved: a folder that :meth:`save` wrote, or one that was opened already.
            on_event, recorder, watcher, tracer: as for a new session.

        Raises:
            RecordingError: none is there, it is damaged, or of another model or number format.
            BudgetError: the machine cannot hold its budget.
        """
        if not isinstance(saved, SavedSession):
            saved = open_saved(saved)
        saved.check(_described(model))
        session = cls.__new__(cls)
        session._open(model, saved.settings, on_event, recorder, watcher, tracer)
        with saved.reading():
            session._restore(saved)
        if recorder:
            # A replay begins where the recording does.
            session.save(recorder.start)
        return session

    def save(self, folder: Path | str, *, name: str | None = None) -> None:
        """Keep all that :meth:`resume` needs in a folder, in place of what it kept before.

        Args:
            folder: a new one, or one that holds a saved session.
            name: under which the model is found again; its own if left out.

        Raises:
            RecordingError: the folder holds something else, or cannot be written.
            OmniError: called within a unit or an answer.
        """
        state = {
            "settings": self.settings.state(),
            "time": self._time,
            "cursor": asdict(self._cursor),
            "totals": self._totals,
            **self._aggregated(),
            "plans": self._digest.state,
            "cache": cache_state(self._cache),
        }
        model = _described(self.model)
        model = replace(model, name=name or model.name)
        with self._tracer.span("save", tokens=len(self._ledger)):
            tensors = shapes(self._ledger, self._tables) | embedding_shapes(self._cache)
            write_saved(folder, model, state, tensors, arrays(self._cache))

    @property
    def time(self) -> float:
        """Seconds of the stream so far."""
        return self._time

    def append(self, media: UnitMedia) -> None:
        """Take one unit in. If the frontend, backend or policy raises, all is as it was before.

        Raises:
            OmniError: what a frontend, backend or policy says.
        """
        check_time(media, self._time)
        with self._whole():
            with self._tracer.span("prepare", unit=self._cache.unit) as span:
                tokens, cursor = self.model.frontend.unit(media, self._cursor)
                span.add(tokens=len(tokens.block))
            self._record(lambda recorder: recorder.unit(media))
            with self._tracer.span("encode", unit=self._cache.unit, tokens=len(tokens.block)):
                embeddings = self.model.backend.encode(tokens.vision, tokens.audio)
            self._cache.make_room(len(tokens.block))
            block, raw, aggregated = tokens.block, None, None
            if (aggregator := self._cache.aggregator) is not None:
                aggregated = self._cache.aggregated(aggregator, tokens, embeddings)
                block, raw = aggregated.block, aggregated.counts
                embeddings = aggregated.embeddings
            self._cache.open_frame(self._cursor.position, block)
            # Nothing here reads a unit's logits, but a replay compares them.
            last = [len(block) - 1] if self._recorder is not None and len(block) else []
            self._cache.step(block, embeddings=embeddings, counts=raw, logits=last)
            self._cursor = cursor
            gone = self._cache.decide()
        counts = named(by_modality(block.modality))
        for name, count in counts.items():
            self._totals[name] += count
        self._totals["units"] += 1
        self._time = media.stop
        told: dict[str, Any] = {}
        tally = None
        if aggregator is not None and aggregated is not None:
            aggregator.settle()
            tally = aggregated.tally
            self._seen += tally
            told = {"aggregated": asdict(tally)}
        self._close_unit(gone, tally)
        kv, measured = self._cache.usage(), self.model.backend.memory().measured
        self._emit("unit", unit=self._cache.unit - 1, tokens=counts, **told, kv=kv, memory=measured)

    def ask(
        self,
        question: str,
        *,
        max_tokens: int | None = None,
        branch: bool = False,
        quiet: bool = False,
    ) -> str:
        """Ask about the stream so far.

        Args:
            question: text; empty where it was spoken, and is in the stream.
            max_tokens: longest answer; at most the session's.
            branch: leave no trace: order, positions and cache are as before.
            quiet: emit no events.

        Returns:
            The answer.
        """
        start = time.perf_counter()
        limit = self.settings.max_tokens
        if max_tokens is not None:
            limit = min(max_tokens, limit)
        number, order = self._cache.unit, self._ledger.next_order
        self._stopped = False
        with self._whole(keep=not branch):
            block, cursor = self.model.frontend.question(question, self._cursor)
            self._check_question(len(block), limit)
            self._cache.make_room(len(block) + limit + QUESTION)
            self._cache.open_frame(self._cursor.position)
            generator = np.random.default_rng([self.settings.seed, self._ledger.next_order])
            logits = self._cache.step(block, logits=[len(block) - 1])
            self._cursor = cursor
            with self._tracer.span("decode", unit=number, question=len(block)) as span:
                given = self._answer(logits, limit, generator, branch, quiet)
                span.add(tokens=self._ledger.next_order - order - len(block))
            gone = None if branch else self._cache.decide()
        ttft = round((given.first - start) * 1e3, 3) if given.first else 0.0
        if not quiet:
            self._emit("answer", unit=number, question=question, text=given.text, ttft_ms=ttft)
        if not branch:
            self._totals["answers"] += 1
            self._totals["text"] += self._ledger.next_order - order
            self._close_unit(gone)
        return given.text

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
            **self._aggregated(),
            "evicted": self._cache.evicted,
            "position": self._cursor.position,
            "kv": self._cache.usage()
            | {
                "most_cells": self._cache.most_cells,
                "peak_cells": self._cache.peak_cells,
                "peak_span": self._cache.peak_span * PAGE,
            },
            "memory": asdict(memory),
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

    def _open(
        self,
        model: Model,
        settings: Settings,
        on_event: Callable[[Event], None] | None,
        recorder: Recorder | None,
        watcher: Watcher | None,
        tracer: Tracer,
    ) -> TokenBlock:
        """Allocate the arena; returns the prefix, which is still to be read."""
        self.model, self.settings, self.budget = model, settings, settings.budget
        self.policy, self.layout = settings.retention, settings.layout
        self._emit_to, self._recorder, self._watcher = on_event, recorder, watcher
        self._tracer = tracer
        prefix, self._cursor = model.frontend.open(settings.system)
        self._cache = Cache(
            model.backend,
            model.text,
            budget=settings.budget,
            retention=settings.retention,
            layout=settings.layout,
            prefix=len(prefix),
            unit=model.frontend.largest_unit,
            answer=settings.max_tokens,
            chunk=settings.prefill_chunk,
            groups=settings.groups,
            frame=settings.frame,
            sealing=settings.sealing,
            aggregation=settings.aggregation,
            layers=settings.layers,
            watcher=watcher,
            tracer=tracer,
            on_plan=self._keep,
            on_event=self._emit if on_event else None,
        )
        self._tables, self._ledger = self._cache.tables, self._cache.ledger
        if recorder:
            recorder.begin(
                {
                    "model": model.name,
                    "backend": model.backend.name,
                    "device": model.backend.device,
                    "element": model.backend.element,
                    "arena": self._tables.arena.state(),
                    **settings.named(),
                }
            )
        self._digest = PlanDigest()
        self._time = 0.0
        self._totals = dict.fromkeys(("units", "answers", "vision", "audio", "text"), 0)
        self._seen = Counts()
        self._stopped = False
        return prefix

    def _restore(self, saved: SavedSession) -> None:
        state = saved.state
        self._cursor, self._time = restored_cursor(state["cursor"]), saved.time
        self._totals = {name: whole(state["totals"][name]) for name in self._totals}
        self._digest = PlanDigest(state["plans"])
        if self._cache.aggregator is not None:
            told = state["aggregated"]
            self._seen = Counts(**{name: whole(told[name]) for name in asdict(self._seen)})
        restore_cache(self._cache, state["cache"], saved.stored)

    def _answer(
        self,
        logits: Logits,
        limit: int,
        generator: np.random.Generator,
        branch: bool,
        quiet: bool,
    ) -> Answer:
        frontend = self.model.frontend

        def show(text: str) -> None:
            if not quiet:
                self._emit("token", text=text)

        given = answer(
            frontend,
            logits,
            self._cursor,
            run=lambda block: self._cache.step(block, logits=[len(block) - 1]),
            limit=limit,
            temperature=self.settings.temperature,
            generator=generator,
            stopped=lambda: self._stopped,
            on_text=show,
        )
        self._cursor = given.cursor
        if not branch:
            block, self._cursor = frontend.resume(self._cursor)
            self._cache.step(TokenBlock.join([*given.left, block]))
        if given.text != given.shown:
            show(given.text[len(given.shown) :])
        return given

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

    def _aggregated(self) -> Event:
        """Vision tokens before and after, where they are aggregated."""
        return {"aggregated": asdict(self._seen)} if self._cache.aggregator is not None else {}

    def _close_unit(self, gone: Gone | None, tally: Counts | None = None) -> None:
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
                    tally,
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


def _described(model: Model) -> SavedModel:
    return SavedModel(model.name, model.identity, model.weights, model.backend.element)


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
