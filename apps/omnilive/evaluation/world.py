"""Whether a model knows the stream world, and how many cells a stream of it takes."""

from __future__ import annotations

import numpy as np

from omni_core import UnitMedia
from omni_core.errors import CheckpointError
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.session import SYSTEM
from omnilive.evaluation.settings import Extent
from omnilive.models import Prepared
from omnilive.tokenizer import FileTokenizer
from streamworld import spec, tokens

_SPACE = "\u0120"
"""How a byte-level vocabulary writes the space before a word."""


def check_model(prepared: Prepared) -> None:
    """Refuse a model that was made for something else.

    Raises:
        CheckpointError: its tokenizer lacks the world's words, or its units are no seconds.
    """
    advice = "measure the embedded model, or one that training/embedded.py made"
    theirs = FileTokenizer(prepared.checkpoint.path)
    pieces = sorted(tokens.tokenizer().get_vocab(with_added_tokens=False))
    words = [f" {piece[1:]}" for piece in pieces if piece.startswith(_SPACE) and piece != _SPACE]
    lacking = [word.strip() for word in words if theirs.encode(word) != tokens.ids_of(word)]
    if lacking:
        few = ", ".join(lacking[:3])
        raise CheckpointError(
            f"{prepared.name}: its tokenizer lacks {len(lacking)} of the stream world's "
            f"{len(words)} words ({few}), expected a token for each, as the world's own tokenizer "
            f"has: {advice}"
        )
    frontend = prepared.frontend
    if (frontend.seconds, frontend.fps) != (1.0, 1.0):
        raise CheckpointError(
            f"{prepared.name}: a unit is {frontend.seconds:g} s with {frontend.fps:g} frames a "
            f"second, expected one second with one frame, as the stream world has: {advice}"
        )


def extent(prepared: Prepared, units: int, longest: int) -> Extent:
    """Cells of streams of so many units, with questions of at most ``longest`` tokens."""
    prefix, cursor = prepared.frontend.open(SYSTEM)
    empty = np.zeros((spec.FRAME, spec.FRAME, 3), np.uint8)
    silent = np.zeros(SAMPLE_RATE, np.float32)
    unit, _ = prepared.frontend.unit(UnitMedia(0.0, 1.0, (empty,), silent), cursor)
    largest = prepared.frontend.largest_unit
    return Extent(len(prefix), len(unit.block), largest, units, longest)
