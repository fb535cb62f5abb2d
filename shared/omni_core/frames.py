"""Position frames: rotary positions that stay in the trained range however long the stream runs.

Keys are stored rotated at their position within a frame and never rotated again. A query reads the
keys of another frame after it has been rotated to that frame: its own position plus the frame's
*shift*, the distance between the two frames' starts. Where that would take a distance out of the
range that the model was trained on, the shift is held at what the range allows: the old frame moves
closer, by one number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from omni_core.backend import PAGE
from omni_core.errors import BudgetError
from omni_core.state import expect, whole
from omni_core.units import Int32

QUESTION = 128
"""Tokens that are set aside for a question beside the longest answer."""
_MOST = 2**31 - 1
LENGTH = 8192
"""Positions after which a frame is closed, where the trained range allows."""


@dataclass(frozen=True)
class Frames:
    """The frames of a stream, as a value: a rolled-back unit leaves no trace.

    Attributes:
        reach: positions that the model was trained on; distances stay below.
        length: positions after which the next unit opens a frame.
        starts: stream position at which each live frame begins, by frame number.
        current: the frame that new tokens belong to.
    """

    reach: int
    length: int
    starts: dict[int, int]
    current: int = 0

    @staticmethod
    def begin(reach: int, length: int | None = None) -> Frames:
        """Frame 0 at position 0; it holds the prefix.

        A frame takes at most a quarter of the range, so that old ones have room beside it.
        """
        return Frames(reach, frame_length(reach, length), {0: 0})

    def at(self, position: int, full: Callable[[], bool] = lambda: False) -> Frames:
        """The frames for a unit that begins at a stream position: the next one is opened if due.

        Args:
            position: where the unit begins.
            full: whether the current frame's pages of sinks cannot take the unit's; asked in the
                last quarter of a frame, which is then left out, rather than a page be opened that
                would stay nearly empty.
        """
        used = position - self.starts[self.current]
        if self.current and used < self.length and (used < self.length * 3 // 4 or not full()):
            return self
        number = self.current + 1
        return replace(self, starts={**self.starts, number: position}, current=number)

    def local(self, positions: Int32) -> Int32:
        """Stream positions of new tokens within the current frame."""
        return positions - np.int32(self.starts[self.current])

    def shifts(self, live: Int32, last: int) -> Int32:
        """``int32[m, 2]``: the shift of each frame in ``live`` and of the current one.

        Args:
            live: frames that have live cells, ascending.
            last: the largest position of the step, within the current frame.
        """
        here = self.starts[self.current]
        most = max(0, min(self._most, self.reach - 1 - last))
        rows = [
            (frame, min(here - self.starts[frame], most))
            for frame in sorted({*live.tolist(), self.current})
        ]
        return np.asarray(rows, np.int32).reshape(-1, 2)

    def keep(self, live: Int32) -> Frames:
        """Without the frames that have no live cell left."""
        wanted = {*live.tolist(), self.current}
        return replace(self, starts={f: s for f, s in self.starts.items() if f in wanted})

    def far(self) -> list[int]:
        """Frames that are as far as any will ever be, oldest first: they share one shift for good.

        Nothing tells them apart any more, so that they may become one.
        """
        here = self.starts[self.current]
        return [f for f, start in sorted(self.starts.items()) if here - start >= self._most]

    def state(self) -> dict[str, Any]:
        """The frames as JSON values."""
        return {"starts": sorted([f, s] for f, s in self.starts.items()), "current": self.current}

    def restored(self, state: Mapping[str, Any], live: Int32) -> Frames:
        """The frames of the same lengths that :meth:`state` told of.

        Args:
            state: what it gave.
            live: frames that have live cells.

        Raises:
            ValueError: they cannot be.
        """
        starts = {whole(frame, 0, _MOST): whole(at, 0, _MOST) for frame, at in state["starts"]}
        current = whole(state["current"])
        expect({*live.tolist(), current} <= starts.keys(), "a start for each position frame")
        expect(all(starts[f] <= starts[current] for f in starts), "a current frame that is newest")
        return replace(self, starts=starts, current=current)

    @property
    def _most(self) -> int:
        """The largest shift. It leaves room for a current frame that has grown past its length."""
        return max(0, self.reach - 1 - self.length - self.length // 4)


def frame_length(reach: int, length: int | None = None) -> int:
    """Positions of a frame for a trained range of ``reach``: what is asked for, or a quarter."""
    return min(length or LENGTH, max(1, reach // 4))


def most_frames(reach: int, length: int | None, budget: int) -> int:
    """Most frames that ``budget`` cells are spread over, as page tables are laid out for it."""
    return min(reach // frame_length(reach, length), budget // PAGE) + 2


def check_range(reach: int, prefix: int, unit: int, answer: int) -> None:
    """Refuse what one frame could not hold beside old ones, in a trained range of ``reach``.

    A frame of a quarter of the range, then a unit or question of ``unit`` tokens, then an answer,
    must end below ``reach``, with room to read a prefix before them.

    Raises:
        BudgetError: the prefix takes more than an eighth of the range, or the others half of it.
    """
    if prefix > reach // 8:
        raise BudgetError(
            f"the system prompt takes {prefix} tokens, but at most {reach // 8} fit a model "
            f"that was trained on {reach} positions; shorten it"
        )
    if unit + QUESTION + answer > reach // 2:
        raise BudgetError(
            f"a unit or question of {unit} tokens and an answer of up to {answer} are too long for "
            f"a model that was trained on {reach} positions; lower --max-tokens"
        )
