"""Where every token of a stream lies: laid out by the checkpoint's own frontend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from omni_core.frontend.base import UnitMedia
from omni_core.frontend.qwen2_5_omni import QwenOmniFrontend
from omni_core.session import SYSTEM
from omni_core.units import EMBEDDED, Int32, Modality, Role, TokenBlock
from streamworld import spec, tokens
from training.shape import SQUARE, preprocessor


class WorldTokenizer:
    """The stream world's tokenizer as a frontend asks for it."""

    def __init__(self) -> None:
        self._tokenizer = tokens.tokenizer()

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of ``ids``, special tokens left out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


@dataclass(frozen=True)
class Layout:
    """What streams are made of.

    Attributes:
        prefix: ids before the first unit, at positions 0, 1, 2, …
        unit: ids of one unit; 0 where an encoder gives the embedding.
        places: positions of one unit that begins at position 0, ``int32[3, unit]``.
        step: positions from one unit to the next.
        resume: ids that end an answer and open the next turn.
        vision, audio: where a unit's vision and audio tokens are in the unit.
        vision_end, audio_end: where its closing delimiters are.
    """

    prefix: Int32
    unit: Int32
    places: Int32
    step: int
    resume: Int32
    vision: slice
    audio: slice
    vision_end: int
    audio_end: int


@dataclass(frozen=True)
class Arrangement:
    """A stream of units with turns of text between some of them.

    Attributes:
        order: ``int32[T]``, where each token is found in the prefix, all units, all turns in a row.
        positions: ``int32[3, T]``.
        first: ``int32[U]``, each unit's first token.
        ends: ``int32[U]``, the next free position after each unit and the turns that follow it.
        visible: ``int32[U]``, tokens up to there.
        owner: ``int32[T]``, the unit that a token belongs to; ``U`` for the prefix and for turns.
    """

    order: Int32
    positions: Int32
    first: Int32
    ends: Int32
    visible: Int32
    owner: Int32


def frontend(config: dict[str, Any]) -> QwenOmniFrontend:
    """The frontend that the exported checkpoint will have."""
    return QwenOmniFrontend.from_checkpoint(config, preprocessor(), WorldTokenizer())


@lru_cache(maxsize=64)
def layout(front: QwenOmniFrontend, size: tuple[int, int] = SQUARE) -> Layout:
    """The layout behind the app's own system prompt, of frames that come out at ``size``.

    Raises:
        ValueError: no frame of that shape does.
    """
    prefix, cursor = front.open(SYSTEM)
    # Frames come larger than they are wanted.
    picture = np.zeros((size[0] * 4, size[1] * 4, 3), np.uint8)
    media = UnitMedia(0.0, 1.0, (picture,), np.zeros(spec.SAMPLE_RATE, np.float32))
    laid, after = front.unit(media, cursor)
    block = laid.block
    grid = laid.vision[0].grid
    found = tuple(side * front.spec.patch for side in grid[1:])
    if found != size:
        raise ValueError(
            f"frames of {size} are taken as {found}, expected as they are: use one of shape.SIZES"
        )
    return Layout(
        prefix.tokens,
        np.where(block.tokens == EMBEDDED, 0, block.tokens).astype(np.int32),
        block.positions - cursor.position,
        after.position - cursor.position,
        front.resume(after)[0].tokens,
        _run(block, Modality.VISION),
        _run(block, Modality.AUDIO),
        _end(block, Modality.VISION),
        _end(block, Modality.AUDIO),
    )


def arrange(laid: Layout, units: int, turns: Sequence[int] = (), turn: int = 0) -> Arrangement:
    """Put turns of ``turn`` tokens behind the units named in ``turns``."""
    size, prefix = laid.unit.size, laid.prefix.size
    order, positions = [np.arange(prefix)], [np.tile(np.arange(prefix), (3, 1))]
    first, ends, visible = [], [], []
    position = done = prefix
    for unit in range(units):
        first.append(done)
        order.append(prefix + unit * size + np.arange(size))
        positions.append(laid.places + position)
        position, done = position + laid.step, done + size
        for number in np.flatnonzero(np.asarray(turns) == unit):
            order.append(prefix + units * size + number * turn + np.arange(turn))
            positions.append(np.tile(position + np.arange(turn), (3, 1)))
            position, done = position + turn, done + turn
        ends.append(position)
        visible.append(done)
    laid_out = np.concatenate(order)
    inside = laid_out - prefix
    owner = np.where((inside >= 0) & (inside < units * size), inside // size, units)
    arrays = laid_out, np.concatenate(positions, 1), first, ends, visible, owner
    return Arrangement(*(np.asarray(array, np.int32) for array in arrays))


def _run(block: TokenBlock, sense: Modality) -> slice:
    places = np.flatnonzero(block.modality == sense)
    return slice(int(places[0]), int(places[-1]) + 1)


def _end(block: TokenBlock, sense: Modality) -> int:
    marks = (block.role == Role.DELIMITER) & (block.sense == sense)
    return int(np.flatnonzero(marks)[-1])
