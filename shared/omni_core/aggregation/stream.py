"""A stream's units, one after the other, with what is alive of those before."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.aggregation.interframe import shown
from omni_core.aggregation.intraframe import merge_frame
from omni_core.aggregation.likeness import MOST_TOKENS
from omni_core.aggregation.places import Places, free_slots
from omni_core.aggregation.rule import Aggregation
from omni_core.aggregation.unit import AggregatedUnit, Counts, Frame, shrunk, vision_tokens
from omni_core.backend import MergePlan, VisionMemory
from omni_core.errors import MediaError
from omni_core.frontend.base import UnitTokens
from omni_core.ledger import LedgerView
from omni_core.units import Int32


class Aggregator:
    """Decides of each unit what enters the cache.

    Attributes:
        rule: the parameters.
        places: what stands for which place of the picture.
        memory: embeddings of that, where the backend computes.
    """

    def __init__(self, rule: Aggregation, memory: VisionMemory) -> None:
        self.rule, self.memory = rule, memory
        self.places = self._next = Places()

    def unit(
        self, tokens: UnitTokens, embeddings: Any, view: LedgerView, order: int
    ) -> AggregatedUnit:
        """What enters of a unit. Later ones are compared with it once :meth:`settle` was called.

        Args:
            tokens: the unit.
            embeddings: the backend's.
            view: what is alive.
            order: of the next token.

        Raises:
            MediaError: a frame of more tokens than can be told apart.
        """
        block = tokens.block
        index = vision_tokens(block)
        self._next = self.places.among(view)
        if not index.size:
            return AggregatedUnit(block, embeddings, np.ones(len(block), np.int32))
        count, high, wide = tokens.vision[0].grid
        each = index.size // count
        self._next = self._next.of((high, wide), each)
        if each > MOST_TOKENS:
            raise MediaError(
                f"a frame has {each} tokens, expected at most {MOST_TOKENS} where tokens are "
                "aggregated: use smaller pictures"
            )
        frames = []
        for at in range(0, index.size, each):
            part = index[at : at + each]
            frames.append(self._frame(part, block.rows[part], embeddings, order))
        left, counts, plan, where = shrunk(block, frames)
        self._next = self._next.moved(order, where)
        tally = sum((frame.tally for frame in frames), Counts())
        if tally.entered == tally.seen:
            return AggregatedUnit(block, embeddings, counts, None, tally)
        return AggregatedUnit(left, embeddings, counts, plan, tally)

    def settle(self) -> None:
        """The last unit is in the cache."""
        self.places = self._next

    def _frame(self, index: Int32, rows: Int32, embeddings: Any, order: int) -> Frame:
        known, place = self._next, np.arange(index.size, dtype=np.int32)
        at = known.known
        valid, level = self.memory.compare(embeddings, rows, at, known.slot[at])
        seen = shown(valid, at, level, self.rule)
        left = valid & ~seen

        def nearest(plan: MergePlan, ids: Int32) -> tuple[Int32, Int32]:
            return self.memory.nearest(embeddings, plan, ids)

        groups, first = merge_frame(rows[left], place[left], nearest, self.rule)
        frame = Frame(index, valid, seen, groups, first)
        if groups.size:
            # What stood for these places keeps its slot until this unit is settled: it may fail.
            taken = np.concatenate([self.places.slot, known.slot])
            slots = free_slots(taken, first.size)
            self.memory.keep(embeddings, MergePlan.of(rows[left], groups), slots)
            stands = frame.stand.astype(np.int64) + order
            self._next = known.renewed(place[left], stands[groups], slots[groups])
        return frame
