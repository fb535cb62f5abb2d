"""What streams held up to a moment, and the shape of what is asked about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamworld import spec
from streamworld.script import Script

Ints = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

THING_ANSWERS = np.full((spec.THINGS, 2), -1, np.int16)
for _thing in range(spec.THINGS):
    for _place, _name in enumerate(spec.thing_words(_thing)):
        THING_ANSWERS[_thing, _place] = spec.ANSWER[_name]
SOUND_ANSWERS = np.asarray(
    [spec.ANSWER.get(spec.sound_word(sound), -1) for sound in range(spec.SOUNDS)], np.int16
)
NONE, YES, NO = (spec.ANSWER[word] for word in (spec.NEVER, "yes", "no"))
KIND_RANGE = {
    "shape": (spec.FIRST_SHAPE, spec.FIRST_DIGIT),
    "colour": (spec.FIRST_SHAPE, spec.FIRST_DIGIT),
    "digit": (spec.FIRST_DIGIT, spec.FIRST_CLOTHING),
    "clothing": (spec.FIRST_CLOTHING, spec.THINGS),
}
# How often a question may take for granted what is not so.
IN_VAIN = 0.12


@dataclass(frozen=True)
class Seen:
    """What some streams held up to and with unit ``T - 1``: arrays ``[R, T]``."""

    thing: Ints
    scene: Ints
    sound: Ints
    split: str
    vain: bool

    @classmethod
    def of(cls, script: Script, rows: Ints, unit: int, *, vain: bool = False) -> Seen:
        """The streams ``rows`` up to ``unit``; ``vain`` lets questions be put in vain."""
        kept = slice(0, unit + 1)
        arrays = (
            a[rows, kept].astype(np.int64) for a in (script.thing, script.scene, script.sound)
        )
        return cls(*arrays, script.split, vain)

    @property
    def size(self) -> int:
        """How many streams."""
        return int(self.thing.shape[0])

    @property
    def word(self) -> Bools:
        """Where a word is said."""
        return (self.sound >= spec.FIRST_WORD) & (self.sound < spec.BEEP)

    @property
    def opens(self) -> Bools:
        """Where a scene begins."""
        return np.diff(self.scene, axis=1, prepend=-1) > 0

    def is_kind(self, topic: str) -> Bools:
        """Where a thing of the topic's kind is on screen."""
        low, high = KIND_RANGE[topic]
        return (self.thing >= low) & (self.thing < high)


@dataclass(frozen=True)
class Asked:
    """Whether each stream can be asked (``valid``), with what, and the answer."""

    valid: Bools
    slots: Ints
    answer: Ints
    evidence: Ints


def asked(valid: Bools, slot: Any, answer: Ints, evidence: Any) -> Asked:
    """Fill up to whole arrays: a slot or -1, an answer of one or two words, a unit or -1."""
    size = valid.size
    slots = np.full((size, 2), -1, np.int64)
    slots[:, 0] = slot
    full = np.full((size, 2), -1, np.int64)
    full[:, : 1 if answer.ndim == 1 else 2] = answer[:, None] if answer.ndim == 1 else answer
    return Asked(valid, slots, full, np.broadcast_to(np.asarray(evidence), (size,)))


def named(thing: Ints, topic: str) -> Ints:
    """Answers that name things, or one side of them, ``[R, 2]``."""
    if topic in ("thing", "scene"):
        return THING_ANSWERS[thing]
    answer = np.full((thing.size, 2), -1, np.int64)
    column = 1 if topic == "shape" else 0
    low, high = KIND_RANGE[topic]
    inside = (thing >= low) & (thing < high)
    answer[:, 0] = np.where(inside, THING_ANSWERS[thing, column], NONE)
    return answer


def at(values: Ints, place: Ints) -> Ints:
    """``values[r, place[r]]``."""
    return np.take_along_axis(values, place[:, None], axis=1)[:, 0]


def last(mask: Bools) -> Ints:
    """The last marked place of each row; meaningless where there is none."""
    return mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)


def any_of(mask: Bools, rng: np.random.Generator) -> Ints:
    """A marked place of each row, evenly drawn."""
    return np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)


def chance(size: int, rng: np.random.Generator, part: float) -> Bools:
    """True for some part of ``size``."""
    return rng.random(size) < part


def in_vain(seen: Seen, rng: np.random.Generator, part: float = IN_VAIN) -> Bools:
    """Which streams may be asked what takes for granted what is not so."""
    return chance(seen.size, rng, part if seen.vain else 0.0)


def times_said(seen: Seen) -> Ints:
    """How often each word was said, ``[R, 26]``."""
    words = np.arange(spec.FIRST_WORD, spec.BEEP)
    return (seen.sound[:, :, None] == words).sum(axis=1)
