"""Right and wrong answers, and how sure a share of them is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from omnilive.evaluation.exam import Exam
from streamworld.asking import ASKS
from streamworld.scoring import LAGS

SPOKEN = "spoken"
"""Among the kinds, what was asked in the stream's own sound."""
RECALL = ("before", "first", "nth", "when", "after")
"""Kinds whose answer lies at one moment of the past."""

Count = tuple[int, int]
"""Right answers, and questions."""


@dataclass(frozen=True)
class Marks:
    """One mark a question, all arrays ``[n]``.

    Attributes:
        seed: of its stream.
        ask: index into ``ASKS``.
        lag: units since the evidence, -1 where no one unit holds it.
        spoken: whether it was asked in the stream's own sound.
        right: whether it was answered right.
    """

    seed: npt.NDArray[np.int64]
    ask: npt.NDArray[np.int64]
    lag: npt.NDArray[np.int64]
    spoken: npt.NDArray[np.bool_]
    right: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, exam: Exam, streams: slice, right: npt.NDArray[np.bool_]) -> Marks:
        """From ``bool[s, Q]`` of some of an exam's streams."""
        ask, lag = exam.questions.ask[streams], exam.questions.lag[streams]
        seed = np.full(right.size, exam.seed, np.int64)
        spoken = exam.questions.form[streams] < 0
        columns = (ask.astype(np.int64), lag, spoken, right)
        return cls(seed, *(column.reshape(-1) for column in columns))

    @classmethod
    def join(cls, parts: list[Marks]) -> Marks:
        """All of them."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def count(self, where: npt.NDArray[np.bool_] | None = None) -> Count:
        """Right answers and questions, in all or in a part."""
        part = self.right if where is None else self.right[where]
        return int(part.sum()), part.size

    def by_kind(self) -> dict[str, Count]:
        """By kind of question, in the world's order; last once more those that were spoken."""
        found = dict(self._named([ask.kind for ask in ASKS]))
        return found | ({SPOKEN: self.count(self.spoken)} if self.spoken.any() else {})

    def by_topic(self) -> dict[str, Count]:
        """By kind and topic."""
        return dict(self._named([f"{ask.kind} {ask.topic}" for ask in ASKS]))

    def by_lag(self) -> dict[str, dict[str, Count]]:
        """By kind, then by lag as ``4-15``; for kinds whose answer lies at one moment."""
        kinds = np.asarray([ask.kind for ask in ASKS])[self.ask]
        bucket = np.searchsorted(LAGS, self.lag, side="right") - 1
        found: dict[str, dict[str, Count]] = {}
        for kind in dict.fromkeys(ask.kind for ask in ASKS):
            here = (kinds == kind) & (self.lag >= 0)
            if here.any():
                found[kind] = {
                    lag_name(int(number)): self.count(here & (bucket == number))
                    for number in np.unique(bucket[here])
                }
        return found

    def by_seed(self) -> dict[int, Marks]:
        """Apart by the seed of the streams."""
        return {int(seed): self._part(self.seed == seed) for seed in np.unique(self.seed)}

    def _part(self, where: npt.NDArray[np.bool_]) -> Marks:
        return Marks(*(getattr(self, field.name)[where] for field in fields(self)))

    def _named(self, names: list[str]) -> Iterator[tuple[str, Count]]:
        for name in dict.fromkeys(names):
            here = np.asarray([other == name for other in names])[self.ask]
            if here.any():
                yield name, self.count(here)


def lag_name(bucket: int) -> str:
    """The lags of a bucket of :data:`LAGS`, in words."""
    first, *rest = LAGS[bucket : bucket + 2]
    if not rest:
        return f"{first}+"
    return str(first) if rest[0] == first + 1 else f"{first}-{rest[0] - 1}"


def highest(right: int, count: int) -> float:
    """The largest share that is not ruled out, at 97.5 % whatever the count (Clopper-Pearson 1934).

    Wilson's upper end, near 1 and for few questions, would rule out the true share far too often.
    """
    if right == count:
        return 1.0
    ways = [
        math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1)
        for n in range(right + 1)
    ]
    low, high = right / count, 1.0
    for _ in range(40):
        share = (low + high) / 2
        few = math.fsum(
            math.exp(way + n * math.log(share) + (count - n) * math.log1p(-share))
            for n, way in enumerate(ways)
        )
        low, high = (share, high) if few > 0.025 else (low, share)
    return high
