"""The streams and questions of one seed: integers alone, so that every machine asks the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamworld import questions, script, tokens

SPLIT = "test"
_SPOKEN = 0.25
"""Share of streams that end in a question asked in their own sound."""
# In eighths of the stream. Late enough that half of it no longer fits the largest budget of the
# default table, so that every policy has chosen by then; every second question waits for the end.
_MOMENTS = (8, 5, 8, 6, 8, 7)

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Exam:
    """``S`` streams with ``Q`` questions each.

    Attributes:
        seed: of streams and questions.
        script: what is there each second.
        questions: what is asked, slot by slot at the same unit in every stream.
        asked, asked_length: tokens from the end of the stream to where the answer begins,
            ``int32[S, Q, L]``, and how many they are, ``int32[S, Q]``.
        answer, answer_length: tokens of the right answer, its end included, likewise.
    """

    seed: int
    script: script.Script
    questions: questions.Questions
    asked: Ints
    asked_length: Ints
    answer: Ints
    answer_length: Ints

    @property
    def longest(self) -> int:
        """Most tokens of a branch."""
        return int((self.asked_length + self.answer_length).max()) - 1

    def slots(self, unit: int) -> list[int]:
        """The slots that are asked when a unit has ended."""
        return [int(slot) for slot in np.flatnonzero(self.questions.unit[0] == unit)]

    def branch(self, streams: slice, slot: int) -> Ints:
        """Question and answer of one slot but for the answer's last token, ``int32[s, T]``.

        Questions differ in length; what lies behind a shorter one is of no account, since nothing
        before it can see it.
        """
        question, length = self.asked[streams, slot], self.asked_length[streams, slot]
        answer, more = self.answer[streams, slot], self.answer_length[streams, slot]
        made = np.zeros((length.size, int((length + more).max()) - 1), np.int32)
        for row, at in enumerate(length):
            made[row, :at] = question[row, :at]
            made[row, at : at + more[row] - 1] = answer[row, : more[row] - 1]
        return made

    def right(self, streams: slice, slot: int, likeliest: Ints) -> npt.NDArray[np.bool_]:
        """Which streams' answers a greedy decoder gets right, ``bool[s]``.

        Args:
            streams: which of them were asked.
            slot: what they were asked.
            likeliest: the likeliest token after each of :meth:`branch`, ``int32[s, T]``.
        """
        length, answer = self.asked_length[streams, slot], self.answer[streams, slot]
        place = np.arange(answer.shape[1])
        at = np.minimum(length[:, None] - 1 + place, likeliest.shape[1] - 1)
        same = np.take_along_axis(likeliest, at, axis=1) == answer
        beyond = place >= self.answer_length[streams, slot][:, None]
        return np.asarray((same | beyond).all(axis=1))


def draw(seed: int, streams: int, units: int, count: int) -> Exam:
    """Write ``streams`` streams of ``units`` units, and draw ``count`` questions for each."""
    written = script.write(seed, streams, units, SPLIT, spoken=_SPOKEN)
    moments = [max(0, units * eighths // 8 - 1) for eighths in _MOMENTS]
    drawn = questions.draw(written, seed, count, asked_at=moments)
    return Exam(seed, written, drawn, *tokens.encode(drawn))
