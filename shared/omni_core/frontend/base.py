"""What a model family's frontend gives: media in, tokens with positions and encoder inputs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omni_core.units import TokenBlock

SAMPLE_RATE = 16_000
"""Samples a second of all sound inside omnilive."""


@dataclass(frozen=True)
class UnitMedia:
    """What was captured in one unit of the stream.

    Attributes:
        start, stop: seconds of the stream; ``stop - start`` is shorter than the template's unit
            where the unit was closed early or the clip ended.
        frames: RGB ``uint8[H, W, 3]``, sampled at the template's rate, oldest first; may be empty.
        audio: mono ``float32[samples]`` at 16 kHz in [-1, 1], or None without a sound track.
    """

    start: float
    stop: float
    frames: tuple[npt.NDArray[np.uint8], ...] = ()
    audio: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class VisionInput:
    """Patches of one video grid, as the vision encoder reads them.

    Attributes:
        patches: ``float32[t * h * w, channels * temporal_patch * patch * patch]``.
        grid: ``(t, h, w)`` in patches, before merging.
    """

    patches: npt.NDArray[np.float32]
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class UnitTokens:
    """One unit as tokens, with what the encoders must turn into embeddings.

    The encoders' rows are numbered through: those of ``vision``, then those of ``audio``.

    Attributes:
        block: the tokens.
        vision: at most one grid.
        audio: at most one log-mel spectrogram ``float32[mel_bins, frames]``.
    """

    block: TokenBlock
    vision: tuple[VisionInput, ...] = ()
    audio: tuple[npt.NDArray[np.float32], ...] = ()


@dataclass(frozen=True)
class Bracket:
    """An open turn whose delimiters stand around many units (the 2-second template).

    Attributes:
        base: position of the first content token.
        vision, audio: whether the turn carries that sense.
        frames: temporal patches that the turn's time so far takes, whether or not it brought them.
        heard: audio tokens that it takes.
        last: the largest position of the last appended run; the closing delimiters follow it.
        short: whether the last unit was a part unit, after which a bracket takes no other.
        stop: seconds of the stream where it ends so far; a unit from elsewhere opens another.
    """

    base: int
    vision: bool
    audio: bool
    frames: int = 0
    heard: int = 0
    last: int = 0
    short: bool = False
    stop: float = 0.0


@dataclass(frozen=True)
class Cursor:
    """Where the next token goes. A value, so that a rolled-back unit leaves no trace.

    Attributes:
        position: the next free position.
        bracket: the open turn, if the template has one.
    """

    position: int = 0
    bracket: Bracket | None = None


class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; special tokens written in it become their ids."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Text of ``ids``, special tokens left out."""
        ...


class Frontend(Protocol):
    """One family's way from media and text to tokens. Pure: state goes in and out as a cursor."""

    @property
    def seconds(self) -> float:
        """Length of a full unit in seconds."""
        ...

    @property
    def fps(self) -> float:
        """Frames a second that the template samples."""
        ...

    @property
    def largest_unit(self) -> int:
        """Most tokens that one unit can have, delimiters included."""
        ...

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Token ids that end an answer."""
        ...

    def open(self, system: str) -> tuple[TokenBlock, Cursor]:
        """The prefix: system prompt and the opening of the first turn."""
        ...

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        """One unit of the stream."""
        ...

    def question(self, text: str, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """A question and the markup up to the answer's first token; closes an open bracket."""
        ...

    def answer(self, token: int, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """One drawn token, to be fed back."""
        ...

    def resume(self, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """The markup that ends an answer and opens the next turn."""
        ...

    def text(self, ids: list[int]) -> str:
        """Text of an answer's tokens."""
        ...
