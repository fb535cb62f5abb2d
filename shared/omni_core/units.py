"""What a stream is made of: tokens with a modality and a role, in units of about a second."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
_Index = slice | Int64


class Modality(IntEnum):
    """Which encoder a token's embedding comes from."""

    TEXT = 0
    VISION = 1
    AUDIO = 2


class Role(IntEnum):
    """What a token is for; retention policies decide by role."""

    PREFIX = 0
    """System prompt and the opening of the first turn: stays for ever."""
    BRACKET = 1
    """Opens or closes a run of many units; goes with the last of the run's units."""
    DELIMITER = 2
    """Opens or closes one modality's span inside a unit; goes with that span."""
    CONTENT = 3
    """A vision or audio token."""
    PROMPT = 4
    """A question, and the turn markup around it."""
    GENERATED = 5
    """Text drawn from the model."""


class Tier(IntEnum):
    """How likely a token is to stay; half of a page's class."""

    PINNED = 0
    """Prefix and system prompt: for ever."""
    SINK = 1
    """Will survive its unit."""
    TRANSIENT = 2
    """Goes when its unit leaves the recent window."""
    OPEN = 3
    """Text of the current turn."""
    SCORED = 4
    """Stays as long as its score holds: may go at any time."""


EMBEDDED = -1
"""The token id of a token whose embedding comes from an encoder."""


@dataclass(frozen=True)
class TokenBlock:
    """A run of new tokens in stream order, before they have a cell. All arrays have length ``T``.

    Attributes:
        tokens: ``int32[T]``, token id, or ``EMBEDDED``.
        rows: ``int32[T]``, row of the encoders' output for embedded tokens, else -1.
        positions: ``int32[3, T]``, rotary position by time, height and width.
        modality: ``int8[T]``, :class:`Modality` of the token itself (delimiters are text).
        sense: ``int8[T]``, :class:`Modality` of the span that the token belongs to: a delimiter has
            the sense of what it delimits.
        role: ``int8[T]``, :class:`Role`.
        offset: ``int32[T]``, place in its span, counted over the content tokens of one sense in one
            unit; of a delimiter or bracket, 0 where it opens and 1 where it closes.
    """

    tokens: Int32
    rows: Int32
    positions: Int32
    modality: Int8
    sense: Int8
    role: Int8
    offset: Int32

    def __len__(self) -> int:
        return int(self.tokens.size)

    def slice(self, start: int, stop: int) -> TokenBlock:
        """The tokens ``start`` to ``stop``; embedding rows keep their numbers."""
        return self.take(np.s_[start:stop])

    def take(self, index: _Index) -> TokenBlock:
        """Some of the tokens; embedding rows keep their numbers."""
        return TokenBlock(
            self.tokens[index],
            self.rows[index],
            self.positions[:, index],
            self.modality[index],
            self.sense[index],
            self.role[index],
            self.offset[index],
        )

    @staticmethod
    def text(tokens: list[int], position: int, role: Role) -> TokenBlock:
        """Text tokens at consecutive positions from ``position``."""
        count = len(tokens)
        line = np.arange(position, position + count, dtype=np.int32)
        return TokenBlock(
            np.asarray(tokens, np.int32),
            np.full(count, -1, np.int32),
            np.broadcast_to(line, (3, count)).copy(),
            np.full(count, Modality.TEXT, np.int8),
            np.full(count, Modality.TEXT, np.int8),
            np.full(count, role, np.int8),
            np.arange(count, dtype=np.int32),
        )

    @staticmethod
    def join(blocks: list[TokenBlock]) -> TokenBlock:
        """Blocks one after the other."""
        if not blocks:
            return TokenBlock.text([], 0, Role.CONTENT)
        return TokenBlock(
            np.concatenate([b.tokens for b in blocks]),
            np.concatenate([b.rows for b in blocks]),
            np.concatenate([b.positions for b in blocks], axis=1),
            np.concatenate([b.modality for b in blocks]),
            np.concatenate([b.sense for b in blocks]),
            np.concatenate([b.role for b in blocks]),
            np.concatenate([b.offset for b in blocks]),
        )
