"""Streams of one layout in step: what an evaluation runs, over the cache that a session has.

All decisions are shared, because units of one layout give equal tokens; what differs is media, and
the token ids of questions and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from omni_core.aggregation import Aggregation, Counts
from omni_core.backend import MergePlan, StepPlan, TableDelta
from omni_core.cache import Cache, Logits
from omni_core.errors import BudgetError, MediaError, OmniError
from omni_core.frames import QUESTION
from omni_core.frontend.base import Cursor, UnitMedia, UnitTokens, VisionInput
from omni_core.layer_budgets.rule import LayerBudgets
from omni_core.paging import Layout
from omni_core.plans import Plan, PlanDigest
from omni_core.retention import Policy
from omni_core.sealing import sealing
from omni_core.session import Model, check_time
from omni_core.settings import SYSTEM, check_counts
from omni_core.units import Int32, Role, TokenBlock

_UNTOLD = TableDelta(
    np.zeros(0, np.int32),
    np.zeros(0, np.int32),
    np.zeros((0, 2), np.uint32),
    np.zeros(0, np.int8),
    np.zeros(0, np.int32),
)


@dataclass(frozen=True)
class Encoded:
    """One unit of every stream. Serves any batch on the backend that encoded it.

    Attributes:
        media: the first stream's, to lay the unit out where a batch stands elsewhere.
        start, stop: cursors before and after the unit.
        block: its tokens between these, which all streams share.
        embeddings: the backend's, ``[streams, rows, hidden]``.
        vision: the first stream's picture, as the encoder read it.
    """

    media: UnitMedia
    start: Cursor
    stop: Cursor
    block: TokenBlock
    embeddings: Any
    vision: tuple[VisionInput, ...] = ()


class StreamBatch:
    """``S`` streams in step through one backend, which was loaded with ``streams=S``."""

    def __init__(
        self,
        model: Model,
        *,
        streams: int,
        budget: int,
        retention: str | Policy,
        layout: str | Layout = "page",
        system: str = SYSTEM,
        longest: int = 64,
        frame: int | None = None,
        prefill_chunk: int = 512,
        kv_bits: int = 16,
        seal: str = "recent",
        aggregation: Aggregation | None = None,
        layers: LayerBudgets | None = None,
    ) -> None:
        """Allocate the arena and read the system prompt. An earlier batch's arena goes.

        Args:
            model: what runs.
            streams: how many the backend was loaded for.
            budget: cells of a stream alive at a unit's end.
            retention: a policy or its name.
            layout: where tokens are placed, or its name.
            system: system prompt, kept for ever.
            longest: most tokens of a branch.
            frame: positions after which a position frame is closed; None takes the default.
            prefill_chunk: most new tokens in one forward pass.
            kv_bits, seal, aggregation, layers: as of a :class:`~omni_core.session.Session`.

        Raises:
            BudgetError: the budget cannot hold the prefix and a unit, or the machine the budget.
            OmniError: the policy, or aggregation, would decide for all streams together.
        """
        check_counts(streams=streams, longest=longest, frame=frame, prefill_chunk=prefill_chunk)
        self.model, self.streams, self.budget = model, streams, budget
        self.policy = model.policy(retention)
        if self.policy.scored and streams > 1:
            raise OmniError(
                f"retention {self.policy.name} goes by attention, which is summed over streams: "
                f"{streams} of them would share one choice; run them one at a time"
            )
        prefix, self._cursor = model.frontend.open(system)
        self._cache = Cache(
            model.backend,
            model.text,
            budget=budget,
            retention=self.policy,
            layout=layout,
            prefix=len(prefix),
            unit=model.frontend.largest_unit,
            # A branch is question and answer in one.
            answer=longest - QUESTION,
            chunk=prefill_chunk,
            streams=streams,
            frame=frame,
            sealing=sealing(kv_bits, seal),
            aggregation=aggregation,
            layers=layers,
            groups=1 if layers is None else model.text.layers,
            on_plan=self._keep,
        )
        self.layout = self._cache.layout
        self._longest, self._time, self._asking = longest, 0.0, False
        self._digest = PlanDigest()
        self.aggregated = Counts()
        self._cache.open(prefix)

    @property
    def most_cells(self) -> int:
        """Most cells of a stream at the end of a unit."""
        return self._cache.most_cells

    @property
    def plans(self) -> str:
        """Digest of the decisions so far, by the first stream's tokens; branches leave it alone."""
        return self._digest.hexdigest()

    def encode(self, media: Sequence[UnitMedia]) -> Encoded:
        """Encode one unit of every stream.

        Args:
            media: a unit of each stream, all of the same time, picture size and sound length.

        Raises:
            MediaError: too few or too many, or streams whose units are laid out differently.
        """
        if len(media) != self.streams:
            raise MediaError(
                f"{len(media)} units came for {self.streams} streams: give one for each"
            )
        frontend, backend = self.model.frontend, self.model.backend
        units = [frontend.unit(each, self._cursor) for each in media]
        first, stop = units[0]
        for number, (unit, after) in enumerate(units):
            same = _equal(unit.block, first.block) and after == stop
            if not same or (media[number].start, media[number].stop) != (
                media[0].start,
                media[0].stop,
            ):
                raise MediaError(
                    f"stream {number} has {_described(media[number])} where stream 0 has "
                    f"{_described(media[0])}: streams in step need units of one time, picture size "
                    "and sound length"
                )
        rows = backend.stack([backend.encode(unit.vision, unit.audio) for unit, _ in units])
        return Encoded(media[0], self._cursor, stop, first.block, rows, first.vision)

    def append(self, encoded: Encoded) -> None:
        """Take one unit of every stream in, as a session does.

        Raises:
            OmniError: what a frontend, backend or policy says; all is as it was before.
        """
        check_time(encoded.media, self._time)
        block, stop = encoded.block, encoded.stop
        if encoded.start != self._cursor:
            unit, stop = self.model.frontend.unit(encoded.media, self._cursor)
            block = unit.block
        embeddings, counts, tally = encoded.embeddings, None, Counts()
        aggregator = self._cache.aggregator
        with self._cache.whole():
            self._cache.make_room(len(block))
            if aggregator is not None:
                tokens = UnitTokens(block, encoded.vision)
                found = self._cache.aggregated(aggregator, tokens, embeddings)
                block, embeddings, counts = found.block, found.embeddings, found.counts
                tally = found.tally
            self._cache.open_frame(self._cursor.position, block)
            self._cache.step(block, embeddings=embeddings, counts=counts)
            gone = self._cache.decide()
        if aggregator is not None:
            aggregator.settle()
            self.aggregated += tally
        self._cursor, self._time = stop, encoded.media.stop
        self._cache.close_unit(gone)

    def branch(self, tokens: Int32) -> Logits:
        """Logits of text that follows the streams so far, without a trace.

        Args:
            tokens: ``int32[S, T]``, token ids. Shorter rows are filled up at their end with any
                id: a token's logits do not depend on what comes after it.

        Returns:
            ``float32[S, T, vocab]``: what comes after each token.

        Raises:
            BudgetError: longer than the batch has room for.
            OmniError: no row for each stream.
        """
        if tokens.ndim != 2 or len(tokens) != self.streams or not tokens.size:
            raise OmniError(
                f"a branch of shape {list(tokens.shape)} came for {self.streams} streams: give "
                "token ids [streams, T]"
            )
        length = tokens.shape[1]
        if length > self._longest:
            raise BudgetError(
                f"a branch of {length} tokens came, but there is room for {self._longest}: make "
                f"the batch with longest={length}"
            )
        marks = self._closing()
        position = int(marks.positions.max()) + 1 if len(marks) else self._cursor.position
        block = TokenBlock.join([marks, TokenBlock.text(tokens[0].tolist(), position, Role.PROMPT)])
        before = np.broadcast_to(marks.tokens, (self.streams, len(marks)))
        self._asking = True
        try:
            with self._cache.whole(keep=False):
                self._cache.make_room(len(block))
                self._cache.open_frame(self._cursor.position)
                return self._cache.step(
                    block,
                    tokens=np.concatenate([before, tokens], axis=1).astype(np.int32),
                    logits=range(len(marks), len(block)),
                )
        finally:
            self._asking = False

    def usage(self) -> dict[str, Any]:
        """Cells, pages, span in cells and bytes of a stream now, and the budget."""
        return self._cache.usage()

    def _closing(self) -> TokenBlock:
        """What closes an open bracket before text: the beginning of any question."""
        question, _ = self.model.frontend.question("", self._cursor)
        return question.slice(0, int(np.count_nonzero(question.role == Role.BRACKET)))

    def _keep(self, plan: Plan, logits: Logits | None) -> None:
        if self._asking:
            return
        if not isinstance(plan, MergePlan):
            # Page tables tell again what a branch has touched: no decision.
            plan = replace(plan, delta=_UNTOLD)
        self._digest.add(
            replace(plan, tokens=plan.tokens[:1]) if isinstance(plan, StepPlan) else plan
        )


def _equal(one: TokenBlock, other: TokenBlock) -> bool:
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(TokenBlock)
    )


def _described(media: UnitMedia) -> str:
    sizes = ", ".join(f"{frame.shape[1]}x{frame.shape[0]}" for frame in media.frames)
    samples = 0 if media.audio is None else media.audio.size
    return (
        f"{media.start:g} to {media.stop:g} s with frames [{sizes}] and {samples} samples of sound"
    )
