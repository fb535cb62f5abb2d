"""What is left of a unit: its tokens without those that were left out or merged away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.backend import MergePlan
from omni_core.units import Int32, Modality, Role, TokenBlock


@dataclass(frozen=True)
class Counts:
    """Vision tokens before and after.

    Attributes:
        seen: as the encoder gave them.
        entered: that were left.
        shown: left out for what the stream has shown.
        merged: merged into others of their frame.
        invalid: left out because their embeddings held something that is no number.
    """

    seen: int = 0
    entered: int = 0
    shown: int = 0
    merged: int = 0
    invalid: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.seen + other.seen,
            self.entered + other.entered,
            self.shown + other.shown,
            self.merged + other.merged,
            self.invalid + other.invalid,
        )


@dataclass(frozen=True)
class Frame:
    """One frame's tokens, and what became of them.

    Attributes:
        index: ``int32[T]``, where in the unit's block they stand, place by place of the picture.
        valid, shown: ``bool[T]``: whose embeddings are numbers, and which of these were left out.
        groups: ``int32[m]``, of the others, which are merged where they share one.
        first: ``int32[k]``, which of the others stands for each group.
    """

    index: Int32
    valid: npt.NDArray[np.bool_]
    shown: npt.NDArray[np.bool_]
    groups: Int32
    first: Int32

    @property
    def left(self) -> npt.NDArray[np.bool_]:
        """The tokens that ``groups`` are of, ``bool[T]``."""
        return self.valid & ~self.shown

    @property
    def stand(self) -> Int32:
        """Where in the unit's block the token stands that stands for each group."""
        found: Int32 = self.index[self.left][self.first]
        return found

    @property
    def tally(self) -> Counts:
        """How many there were of each."""
        seen, groups, shown = self.index.size, self.first.size, int(np.count_nonzero(self.shown))
        invalid = seen - int(np.count_nonzero(self.valid))
        return Counts(seen, groups, shown, self.groups.size - groups, invalid)


@dataclass(frozen=True)
class AggregatedUnit:
    """A unit as it enters the cache.

    Attributes:
        block: its ``T`` tokens; rows are those of ``embeddings``. Offsets count what is left.
        embeddings: the backend's.
        counts: ``int32[T]``, raw tokens merged into each.
        plan: what made the embeddings out of those that were encoded; None where they are the same.
        tally: vision tokens before and after.
    """

    block: TokenBlock
    embeddings: Any
    counts: Int32
    plan: MergePlan | None = None
    tally: Counts = Counts()


def vision_tokens(block: TokenBlock) -> Int32:
    """Indices of a block's vision tokens."""
    content = (block.role == Role.CONTENT) & (block.modality == Modality.VISION)
    return np.flatnonzero(content).astype(np.int32)


def shrunk(
    block: TokenBlock, frames: Sequence[Frame]
) -> tuple[TokenBlock, Int32, MergePlan, Int32]:
    """A unit's block with what is left of its frames.

    Delimiters stay, also of a picture of which nothing is left: that there was one is told by them.

    Returns:
        The block, the counts ``int32[T]`` of its tokens, the plan that makes their embeddings, and
        where in the new block each token of the old one stands, -1 of those that are left out.
    """
    embedded = np.flatnonzero(block.rows >= 0)
    # The group of each embedded token: its own, but for vision tokens.
    group = np.full(len(block), -1, np.int32)
    group[embedded] = block.rows[embedded]
    keep = np.ones(len(block), np.bool_)
    for frame in frames:
        keep[frame.index] = False
        group[frame.index] = -1
        first = frame.stand
        keep[first] = True
        group[frame.index[frame.left]] = block.rows[first[frame.groups]]
    member = np.flatnonzero(group >= 0)
    # Groups are named by the rows of their first tokens: counted, these are rows of the result.
    named = np.zeros(int(block.rows.max(initial=-1)) + 1, np.int32)
    named[group[member]] = 1
    number = np.cumsum(named, dtype=np.int32)[group[member]] - np.int32(1)
    ranked = np.argsort(block.rows[member], kind="stable")
    plan = MergePlan.of(block.rows[member][ranked], number[ranked])
    rows = np.full(len(block), -1, np.int32)
    rows[member] = number
    kept = np.flatnonzero(keep)
    where = np.full(len(block), -1, np.int32)
    where[kept] = np.arange(kept.size)
    part = block.take(kept)
    part = replace(part, rows=rows[kept], offset=part.offset.copy())
    counts = np.ones(kept.size, np.int32)
    counts[part.rows >= 0] = plan.counts[part.rows[part.rows >= 0]]
    seen = vision_tokens(part)
    part.offset[seen] = np.arange(seen.size)
    return part, counts, plan, where
