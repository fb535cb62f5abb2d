"""Old units of which a question sees little: what a cache keeps that has no room for all.

A model that is always shown everything spreads what it remembers over all tokens of a unit, and
then no choice of tokens can stand for the unit. One that now and then finds an old unit's
delimiters alone, or its first tokens, or a few at random, learns to gather it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training.layout import Arrangement, Layout

Ints = npt.NDArray[Any]

RECENT = (1, 2, 4, 8, 16)
"""How many of the newest units are whole."""
_FIRST = (0, 1, 2, 4)
_FIRST_SHARE = (0.55, 0.15, 0.15, 0.15)
"""How many of the first tokens of each sense stay beside the delimiters, and how often."""
_SCATTERED, _SCATTERED_KEEP = 0.2, 0.15
"""Share of thinned streams that keep tokens at random instead, and the share that they keep."""


@dataclass(frozen=True)
class Thinning:
    """What the questions of each stream see of old units.

    Attributes:
        recent: newest units that are whole, ``int32[S]``.
        kept: tokens that stay in any case, ``bool[S, T]``.
    """

    recent: Ints
    kept: npt.NDArray[np.bool_]


def thin(
    rng: np.random.Generator, share: float, streams: int, laid: Layout, arranged: Arrangement
) -> Thinning:
    """Thin ``share`` of the streams; text and delimiters always stay."""
    unit, total = laid.unit.size, arranged.order.size
    inside = arranged.order - laid.prefix.size
    content = (inside >= 0) & (inside < arranged.first.size * unit)
    place = np.where(content, inside % unit, 0)
    kept = np.ones((streams, total), bool)
    for span in (laid.vision, laid.audio):
        first = rng.choice(_FIRST, streams, p=_FIRST_SHARE)
        here = content & (place >= span.start) & (place < span.stop)
        kept &= ~here | (place - span.start < first[:, None])
        scattered = rng.random(streams) < _SCATTERED
        some = ~here | (rng.random((streams, total)) < _SCATTERED_KEEP)
        kept = np.where(scattered[:, None], some & (kept | here), kept)
    kept |= (rng.random(streams) >= share)[:, None]
    return Thinning(rng.choice(RECENT, streams).astype(np.int32), kept)


def delimiters_alone(recent: int, streams: int, laid: Layout, arranged: Arrangement) -> Thinning:
    """All streams with nothing but delimiters and text of what is older than ``recent`` units."""
    inside = arranged.order - laid.prefix.size
    content = (inside >= 0) & (inside < arranged.first.size * laid.unit.size)
    place = np.where(content, inside % laid.unit.size, -1)
    gone = np.zeros(place.size, bool)
    for span in (laid.vision, laid.audio):
        gone |= (place >= span.start) & (place < span.stop)
    return Thinning(np.full(streams, recent, np.int32), np.tile(~gone, (streams, 1)))
