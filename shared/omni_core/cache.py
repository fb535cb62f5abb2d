"""The cache of a stream, inside its budget: what is alive, where it lies, what goes.

A step is planned, run by the backend, then committed. What a unit or a turn has appended can be
taken back whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.aggregation import AggregatedUnit, Aggregation, Aggregator
from omni_core.backend import PAGE, SUBBLOCK, Backend, MergePlan, MovePlan, StepPlan
from omni_core.budget import (
    cell_bytes,
    class_slack,
    least_budget,
    low_watermark,
    plan_arena,
    sealed_reserve,
)
from omni_core.errors import BudgetError, OmniError, PlanError
from omni_core.evictions import Gone, evictable, leaving
from omni_core.frames import Frames, check_range, most_frames
from omni_core.frontend.base import UnitTokens
from omni_core.layer_budgets.online import LayerSignals
from omni_core.layer_budgets.rule import LayerBudgets
from omni_core.ledger import Ledger
from omni_core.model_config import TextConfig
from omni_core.paging import Layout
from omni_core.paging import layout as named_layout
from omni_core.paging.sealing import Ripeness
from omni_core.paging.table import PageTables
from omni_core.plans import Plan
from omni_core.retention import Policy, policy
from omni_core.sealing import Sealing
from omni_core.tracing import NO_TRACE, Tracer
from omni_core.units import Int8, Int32, Int64, Modality, Role, Tier, TokenBlock
from omni_core.watcher import Mass, Watcher

Logits = npt.NDArray[np.float32]


class Cache:
    """Ledger, page tables and position frames of one stream, or of streams of one layout.

    Attributes:
        backend: what runs the plans.
        budget: cells alive at a unit's end, over layer groups on average.
        layers: how they are shared out among layer groups; None where all hold the same.
        highs: ``int64[groups]``, cells of each layer group alive at a unit's end.
        signals: what the stream has told of its layers, where that has a say in these.
        policy, layout: which tokens stay, and where they lie.
        sealing: what of them is sealed; None where all is of 16 bits.
        aggregator: decides what of a unit enters; None where all does.
        ledger, tables, frames: what is alive, its cells, its position frames.
        prefix: tokens of the system prompt.
        unit: number of the unit or turn that runs; -1 before the prefix is read.
        turn: number of the run of units that the newest token belongs to.
        hidden: width of an embedding.
        evicted: tokens evicted so far.
        refused: orders of live tokens that could not be sealed, ``int64[n]``: they stay in 16 bits.
        most_cells: most cells at the end of a unit.
        peak_cells, peak_span: most cells, and pages from first to last, before an eviction.
    """

    def __init__(
        self,
        backend: Backend,
        text: TextConfig,
        *,
        budget: int,
        retention: str | Policy,
        layout: str | Layout,
        prefix: int,
        unit: int,
        answer: int,
        chunk: int,
        groups: int = 1,
        streams: int = 1,
        frame: int | None = None,
        sealing: Sealing | None = None,
        layers: LayerBudgets | None = None,
        aggregation: Aggregation | None = None,
        watcher: Watcher | None = None,
        tracer: Tracer = NO_TRACE,
        on_plan: Callable[[Plan, Logits | None], None],
        on_event: Callable[..., None] | None = None,
    ) -> None:
        """Allocate the arena.

        Args:
            backend: what runs the plans.
            text: the model's shapes.
            budget: cells alive at a unit's end.
            retention: a policy or its name.
            layout: where tokens are placed, or its name.
            prefix: tokens of the system prompt.
            unit: tokens of the largest unit.
            answer: tokens of the longest answer, which comes after a question.
            chunk: most new tokens in one forward pass.
            groups: layer groups with page tables of their own.
            streams: streams of one layout.
            frame: positions after which a position frame is closed; None takes the default.
            sealing: what is sealed; None for a cache of 16 bits.
            aggregation: what of a unit does not enter; None where all does.
            layers: how cells are shared out among layer groups; None for the same in each.
            watcher: looks on.
            tracer: measures steps, evictions, seals and moves.
            on_plan: called with each plan once it is committed, and with its logits.
            on_event: called with the name and the fields of an ``evict`` or a ``warning``.

        Raises:
            BudgetError: the budget cannot hold the prefix and a unit, or the machine the budget.
            OmniError: a policy or a ``head_dim`` that cannot be sealed; streams in step, of which
                each would have others of its tokens left out, or other budgets; budgets of other
                layers than the model has.
        """
        if layers is not None and layers.online and streams > 1:
            raise OmniError(
                f"budgets by layer follow what a stream tells, and {streams} streams share one "
                "layout: run them one at a time, or with a dynamic weight of 0"
            )
        if aggregation is not None and streams > 1:
            raise OmniError(
                f"what is aggregated depends on the picture, and {streams} streams share one "
                "layout: run them one at a time"
            )
        self.policy = policy(retention) if isinstance(retention, str) else retention
        if sealing is not None and self.policy.scored:
            raise OmniError(
                f"retention {self.policy.name} lets tokens go one by one, by their score, and a "
                f"sealed subblock is free again once all {SUBBLOCK} have gone: choose another "
                "retention, or a cache of 16 bits"
            )
        self.layout = named_layout(layout) if isinstance(layout, str) else layout
        self.budget, self.layers, self.prefix = budget, layers, prefix
        arena = plan_arena(
            text,
            budget=budget,
            prefix=prefix,
            unit=unit,
            answer=answer,
            element=backend.element,
            groups=groups,
            streams=streams,
            frame=frame,
            sealing=sealing,
        )
        check_range(text.max_positions, prefix, unit, answer)
        self.highs: Int64 = np.full(groups, budget)
        self.signals: LayerSignals | None = None
        self._least = least_budget(prefix, unit, answer)
        self._mass: Mass | None = None
        if layers is not None:
            if len(layers.sensitivity) != text.layers:
                raise OmniError(
                    f"layer budgets are of {len(layers.sensitivity)} layers, and the model has "
                    f"{text.layers}; give those of this model"
                )
            self.highs = layers.cells(groups, budget, self._least)
            if layers.online:
                self.signals = LayerSignals.none(text.layers)
        backend.allocate(arena)
        self.backend, self._allocation = backend, backend.allocations
        self._vocab, self._cell_bytes = text.vocab, cell_bytes(text, backend.element)
        self.sealing, self._slack = sealing, sealed_reserve(groups)
        self.refused: Int64 = np.zeros(0, np.int64)
        self._merge: MergePlan | None = None
        if sealing is None:
            self._slack = class_slack(groups, most_frames(text.max_positions, frame, budget))
        self.hidden = text.hidden
        self.aggregator: Aggregator | None = None
        if aggregation is not None:
            self.aggregator = Aggregator(aggregation, backend.vision_memory())
        self._chunk, self._watcher = chunk, watcher
        self._scored = self.policy.scored or (watcher is not None and watcher.mass)
        self._on_plan, self._on_event, self._tracer = on_plan, on_event, tracer
        self.tables, self.ledger = PageTables(arena, self.layout), Ledger(groups)
        self.frames = Frames.begin(text.max_positions, frame)
        self.unit, self.turn = -1, 0
        self.evicted = self.most_cells = self.peak_cells = self.peak_span = 0

    @property
    def low(self) -> int:
        """Where eviction stops in the layer group with the fewest cells."""
        return int(_lows(self.highs).min())

    def open(self, prefix: TokenBlock) -> None:
        """Read the system prompt."""
        self.step(prefix)
        self.unit = 0

    @contextmanager
    def whole(self, keep: bool = True) -> Iterator[None]:
        """Take back what was appended inside, if it raises or is not to be kept."""
        order = self.ledger.next_order
        masses = self.ledger.masses() if self._scored else None
        frames, turn = self.frames, self.turn
        done = False
        try:
            yield
            done = keep
        finally:
            self._merge = None
            if not done:
                self._mass = None
                self.tables.release(self.ledger.truncate(order))
                if masses is not None:
                    self.ledger.restore_masses(*masses)
                self.frames, self.turn = frames, turn

    def make_room(self, tokens: int) -> None:
        """Free pages for new tokens before a unit begins: seal, migrate, then evict, then refuse.

        Raises:
            BudgetError: not even eviction frees enough.
        """
        groups = self.tables.arena.groups
        needed = groups * -(-tokens // PAGE) + self._slack
        if self.tables.free_pages() >= needed:
            return
        self._migrate(urgent=True)
        if self.tables.free_pages() >= needed or self._sealed_enough(needed):
            return
        low = np.minimum(_lows(self.highs), np.maximum(0, self.ledger.alive() - tokens))
        with suppress(BudgetError):
            self._evict(self._evictable(low, partial=True))
            while self.sealing and not self._sealed_enough(needed):
                # What has gone lay in subblocks that others still live in: a little more will not.
                low = low * 7 // 8
                self._evict(self._evictable(low, partial=True))
        self._migrate(urgent=True)
        if self.tables.free_pages() < needed:
            raise BudgetError(
                f"{tokens} new tokens do not fit: of {needed} pages that they need, "
                f"{self.tables.free_pages()} are free after eviction; raise --budget"
            )

    def open_frame(self, position: int, unit: TokenBlock | None = None) -> None:
        """Open the next position frame if it is due at a stream position.

        Args:
            position: where the next tokens begin.
            unit: these tokens, where a frame whose pages cannot take their sinks may end early.
        """

        def full() -> bool:
            if unit is None:
                return False
            sinks = np.count_nonzero(self.policy.tiers(unit) == Tier.SINK)
            return bool(self.tables.room(Tier.SINK, self.frames.current) < sinks)

        self.frames = self.frames.at(position, full)

    def aggregated(
        self, aggregator: Aggregator, tokens: UnitTokens, embeddings: Any
    ) -> AggregatedUnit:
        """What enters of a unit, for :meth:`step`, now that there is room for it."""
        with self._tracer.span("aggregate", unit=self.unit, tokens=len(tokens.block)) as span:
            found = aggregator.unit(tokens, embeddings, self.ledger.view(), self.ledger.next_order)
            plan = found.plan
            if plan is not None:
                found = replace(found, embeddings=self.backend.merge(embeddings, plan))
                # Told with the first step that takes its rows: a unit that fails has no trace.
                self._merge = plan
            span.add(left=len(found.block))
        return found

    def step(
        self,
        block: TokenBlock,
        *,
        tokens: Int32 | None = None,
        embeddings: Any = None,
        counts: Int32 | None = None,
        logits: Sequence[int] = (),
    ) -> Logits:
        """Run a block in chunks.

        Args:
            block: ``T`` new tokens.
            tokens: ``int32[streams, T]`` where the streams' token ids differ, else the block's.
            embeddings: what the backend encoded, for embedded tokens.
            counts: ``int32[T]``, raw tokens merged into each; one each if left out.
            logits: rows of the block whose logits are wanted, ascending.

        Returns:
            Logits ``float32[streams, k, vocab]`` of these rows.
        """
        streams = self.tables.arena.streams
        if tokens is None:
            tokens = np.broadcast_to(block.tokens, (streams, len(block)))
        if counts is None:
            counts = np.ones(len(block), np.int32)
        found: list[Logits] = []
        turns = self._turns(block)
        tiers = self.policy.tiers(block)
        for start in range(0, len(block), self._chunk):
            stop = min(start + self._chunk, len(block))
            part, rows = block.slice(start, stop), slice(start, stop)
            placement = self.tables.place(tiers[rows], part.modality, self.frames.current)
            positions = self.frames.local(part.positions)
            live = self.tables.frames()
            embedded = bool((part.rows >= 0).any())
            look = self.signals is not None and embedded and self.unit >= self.signals.due
            plan = StepPlan(
                tokens=tokens[:, rows],
                rows=part.rows,
                positions=positions,
                order=np.arange(len(part), dtype=np.int64) + self.ledger.next_order,
                counts=counts[rows],
                cells=placement.cells,
                shifts=self.frames.shifts(live, int(positions.max())),
                logits=np.asarray([r - start for r in logits if start <= r < stop], np.int32),
                mass=self._scored or look,
                delta=placement.delta,
            )
            self.check_arena()
            self.tables.expect(placement.cells)
            with self._tracer.span("forward", unit=self.unit, tokens=len(part)):
                result = self.backend.forward(plan, embeddings if embedded else None)
            self.tables.take(placement)
            self.ledger.append(part, self.unit, turns[rows], placement.cells, counts[rows])
            if result.mass is not None and self._scored:
                self.ledger.add_mass(result.mass)
            if look:
                self._mass = result.mass
            if self._watcher:
                self._watcher.stepped(self.ledger.view(), self.unit, result.mass)
            # The device may compute until here: nothing above asks for what it finds.
            with self._tracer.span("logits", unit=self.unit, tokens=len(part)):
                answer = result.logits
            if self._merge is not None:
                self._on_plan(self._merge, None)
                self._merge = None
            self._on_plan(plan, answer)
            if plan.logits.size:
                found.append(answer)
        self.turn = int(turns[-1]) if turns.size else self.turn
        empty = np.zeros((streams, 0, self._vocab), np.float32)
        # One part, the usual case, is not copied: a row is a vocabulary long.
        return np.concatenate(found or [empty], axis=1) if len(found) != 1 else found[0]

    def decide(self) -> Gone | None:
        """What is evicted now that a unit has ended; None where all layer groups are in budget."""
        signals, highs = self._looked()
        over = self.ledger.alive() > highs
        # A group within its budget loses nothing.
        gone = self._evictable(np.where(over, _lows(highs), highs)) if over.any() else None
        self.signals, self.highs = signals, highs
        return gone

    def close_unit(self, gone: Gone | None) -> Int64:
        """End a unit or a turn: evict what was decided, then move what it pays to move.

        Returns:
            Its tokens by modality, ``int64[3]``.
        """
        view = self.ledger.view()
        arrived = by_modality(view.modality[view.unit == self.unit])
        self.unit += 1
        # What only grew has no more room than before: nothing in it is worth a move now.
        loosened = self.tables.relabel(Tier.OPEN, Tier.TRANSIENT) or gone is not None
        far = self.frames.far()
        if len(far) > 1:
            self.tables.join_frames(far)
            loosened = True
        self.frames = self.frames.keep(self.tables.frames())
        usage = self.tables.usage()
        self.peak_cells = max(self.peak_cells, usage.cells)
        self.peak_span = max(self.peak_span, usage.span)
        if gone is not None:
            self._evict(gone)
        self.most_cells = max(self.most_cells, self._cells())
        self._seal()
        # What is left of sealed pages waits for others of its class, or until there is need.
        if loosened:
            self._migrate()
        return arrived

    def usage(self) -> dict[str, Any]:
        """Cells, pages, span in cells and bytes of a stream now, and the budget.

        Where the cache is sealed, also to how many bits, and how many of the cells and pages are.
        With budgets by layer, ``cells`` and ``budget`` are means, and ``by_group`` has each layer
        group's of both.
        """
        usage, arena = self.tables.usage(), self.tables.arena
        plain = usage.pages - usage.sealed_pages
        found: dict[str, Any] = {
            "cells": usage.cells,
            "pages": usage.pages,
            "span": usage.span * PAGE,
            "bytes": plain * PAGE * self._cell_bytes // arena.groups,
            "budget": self.budget,
        }
        if self.sealing:
            page = arena.layers_per_group * arena.kv_heads * arena.sealed.bytes
            found["bytes"] += usage.sealed_pages * page
            found |= {
                "bits": arena.bits,
                "sealed_cells": usage.sealed_cells,
                "sealed_pages": usage.sealed_pages,
            }
        if self.layers is not None:
            cells, budgets = self.ledger.alive().tolist(), self.highs.tolist()
            found["by_group"] = {"cells": cells, "budget": budgets}
        return found

    def check_arena(self) -> None:
        """Refuse to go on in an arena that is not this cache's any more.

        Raises:
            PlanError: another session has taken it over.
        """
        if self.backend.allocations != self._allocation:
            raise PlanError(
                "another session has taken over this model's arena; one model runs one session at "
                "a time: load the model twice, or end this session first"
            )

    def _turns(self, block: TokenBlock) -> Int32:
        """The run of units that each token belongs to: an opening bracket begins the next."""
        opens = (block.role == Role.BRACKET) & (block.offset == 0)
        begins = opens & ~np.concatenate([[False], opens[:-1]])
        return (self.turn + np.cumsum(begins)).astype(np.int32)

    def _looked(self) -> tuple[LayerSignals | None, Int64]:
        """The signals and the budgets of layers after the unit that ends."""
        mass, self._mass = self._mass, None
        if self.layers is None or self.signals is None or mass is None:
            return self.signals, self.highs
        with self._tracer.span("look", unit=self.unit):
            found = self.signals.with_look(self.backend, self.ledger.view(), self.unit, mass)
        of = self.highs.size, self.budget, self._least
        return found, self.layers.cells(*of, found.utility())

    def _cells(self) -> int:
        """Live cells of a layer group on average, as :class:`~omni_core.paging.table.Usage`."""
        return int(self.ledger.alive().sum()) // self.highs.size

    def _evictable(self, lows: Int64, *, partial: bool = False) -> Gone:
        with self._tracer.span("retain", unit=self.unit, tokens=len(self.ledger)):
            return evictable(self.policy, self.ledger.view(), lows, partial=partial)

    def _evict(self, gone: Gone) -> None:
        view = self.ledger.view()
        left = leaving(view, gone)
        fields: dict[str, Any] = {}
        if self._on_event or self._watcher:
            why = self.policy.why_dropped(view, left)
            if self._watcher:
                self._watcher.evicting(view, left, why)
            units = view.unit[left]
            fields = {
                "units": [int(units.min()), int(units.max())] if units.size else [],
                "tokens": named(by_modality(view.modality[left])),
                "reasons": {word: int(mask.sum()) for word, mask in why.items() if mask.any()},
            }
        self.tables.release(self.ledger.drop(gone))
        self.evicted += int(left.sum())
        if self.layers is not None:
            fields["by_group"] = self.ledger.alive().tolist()
        self._emit("evict", **fields, cells=self._cells())

    def _sealed_enough(self, needed: int) -> bool:
        """Seal all that may be, in short subblocks too; whether enough pages are free then."""
        if self.sealing is None:
            return False
        self._seal(short=True)
        self._migrate(urgent=True)
        return self.tables.free_pages() >= needed

    def _seal(self, short: bool = False) -> bool:
        """Seal what is due, or all that may be sealed if ``short``; whether anything was."""
        if self.sealing is None:
            return False
        view = self.ledger.view()
        ripe = self.sealing.ripe(view) & (view.unit < self.unit)
        if self.refused.size:
            # What has gone meanwhile is not remembered: it would grow with the stream.
            self.refused = np.intersect1d(self.refused, view.order)
            ripe &= ~np.isin(view.order, self.refused)
        about = Ripeness(view.modality, view.cells, ripe, self.frames.current, short)
        plan = self.tables.plan_seals(about)
        if plan is None:
            return False
        # A failed seal has touched nothing that is read: the cells stay in 16 bits, for good, so
        # that what cannot be coded does not keep others from it.
        sealed = self._moved(plan, "seal")
        if not sealed:
            held = np.isin(view.cells, plan.seals.cells[0]).any(axis=0)
            self.refused = np.concatenate([self.refused, view.order[held]])
        return sealed

    def _migrate(self, urgent: bool = False) -> None:
        plan = self.tables.plan_moves(urgent)
        if plan is not None:
            self._moved(plan, "move")

    def _moved(self, plan: MovePlan, what: str) -> bool:
        """Carry a plan out; whether it could be."""
        source, target = plan.seals.cells
        cells = np.concatenate([plan.source, plan.target, source, target])
        self.check_arena()
        self.tables.expect(cells)
        try:
            with self._tracer.span(what, unit=self.unit, tokens=plan.source.size + source.size):
                self.backend.move(plan)
        except Exception as error:
            if np.isin(plan.target, plan.source).any():
                # Cells that were to move on may have been overwritten already.
                raise
            # Nothing depends on this move: the cells stay where they are, and the stream goes on.
            how = "moved" if what == "move" else "sealed"
            self._emit("warning", message=f"cells could not be {how} and stay: {error}")
            return False
        self.tables.moved(plan)
        self.ledger.move(plan.source, plan.target)
        self.ledger.move(source, target)
        self._on_plan(plan, None)
        return True

    def _emit(self, event: str, **fields: Any) -> None:
        if self._on_event:
            self._on_event(event, **fields)


def _lows(highs: Int64) -> Int64:
    """Where eviction stops in each layer group."""
    return np.asarray([low_watermark(high) for high in highs.tolist()], np.int64)


def by_modality(modality: Int8) -> Int64:
    """How many tokens there are of each modality: ``int64[3]``."""
    return np.bincount(modality, minlength=len(Modality)).astype(np.int64)


def named(counts: Int64) -> dict[str, int]:
    """Counts by modality under their names, as events hold them."""
    return {kind.name.lower(): int(counts[kind]) for kind in Modality}
