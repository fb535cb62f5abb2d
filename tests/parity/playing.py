"""Running sequences through a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.parity.oracle import Float32, Tokens
from tests.parity.planner import Planner


def play(
    backend: Any,
    planner: Planner,
    tokens: Tokens,
    lengths: Sequence[int],
    embeddings: Any = None,
    after: Callable[[Planner], None] = lambda planner: None,
) -> Float32:
    """Logits ``[T, vocab]`` of all tokens, in steps of ``lengths``, each followed by ``after``."""
    assert sum(lengths) == tokens.ids.size
    out, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        plan = planner.step(tokens.ids[None, part], tokens.rows[part], tokens.positions[:, part])
        out.append(backend.forward(plan, embeddings).logits[0])
        after(planner)
        start += length
    return np.concatenate(out)


@dataclass(frozen=True)
class Piece:
    """A run of tokens in one position frame.

    Attributes:
        length: tokens.
        frame: their frame.
        start: the position at which the frame begins.
        shifts: of other frames with live cells.
    """

    length: int
    frame: int
    start: int
    shifts: Mapping[int, int] = field(default_factory=dict)


def play_in_frames(
    backend: Any,
    planner: Planner,
    tokens: Tokens,
    pieces: Sequence[Piece],
    embeddings: Any = None,
    after: Callable[[Planner], None] = lambda planner: None,
    mass: bool = False,
) -> Float32:
    """As :func:`play`, with positions counted from the start of each piece's frame."""
    assert sum(piece.length for piece in pieces) == tokens.ids.size
    out, begin = [], 0
    for piece in pieces:
        part = slice(begin, begin + piece.length)
        plan = planner.step(
            tokens.ids[None, part],
            tokens.rows[part],
            tokens.positions[:, part] - np.int32(piece.start),
            frame=piece.frame,
            shifts=piece.shifts,
            mass=mass,
        )
        out.append(backend.forward(plan, embeddings).logits[0])
        after(planner)
        begin += piece.length
    return np.concatenate(out)
