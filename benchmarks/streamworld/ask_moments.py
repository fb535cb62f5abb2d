"""Questions about a moment: now, so long ago, the last, the first, the third."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamworld import spec
from streamworld.seen import (
    IN_VAIN,
    NONE,
    SOUND_ANSWERS,
    Asked,
    Bools,
    Ints,
    Seen,
    asked,
    at,
    chance,
    in_vain,
    last,
    named,
)


def now_thing(topic: str) -> Callable[[Seen, np.random.Generator], Asked]:
    """What is on screen, or one side of it."""

    def put(seen: Seen, rng: np.random.Generator) -> Asked:
        thing, size = seen.thing[:, -1], seen.size
        valid = np.ones(size, bool)
        if topic != "thing":
            valid = seen.is_kind(topic)[:, -1] | in_vain(seen, rng, IN_VAIN / 3)
        return asked(valid, -1, named(thing, topic), seen.thing.shape[1] - 1)

    return put


def now_sound(seen: Seen, _: np.random.Generator) -> Asked:
    """What is heard; not asked while a question is being spoken."""
    sound = seen.sound[:, -1]
    valid = sound != spec.SPOKEN
    return asked(valid, -1, SOUND_ANSWERS[sound], seen.sound.shape[1] - 1)


def now_word(seen: Seen, rng: np.random.Generator) -> Asked:
    """The word being said."""
    said = seen.word[:, -1]
    valid = said | (in_vain(seen, rng) & (seen.sound[:, -1] != spec.SPOKEN))
    answer = np.where(said, SOUND_ANSWERS[seen.sound[:, -1]], NONE)
    return asked(valid, -1, answer, seen.sound.shape[1] - 1)


def _ago(seen: Seen, rng: np.random.Generator) -> tuple[Bools, Ints, Ints]:
    able = np.asarray([n for n in spec.AGO if n < seen.thing.shape[1]], np.int64)
    if not able.size:
        return (
            np.zeros(seen.size, bool),
            np.zeros(seen.size, np.int64),
            np.zeros(seen.size, np.int64),
        )
    # Short and long times alike: even in the logarithm for half of them.
    near = np.searchsorted(able, np.exp(rng.uniform(0, np.log(able[-1] + 1), seen.size)))
    even = rng.integers(0, able.size, seen.size)
    pick = np.where(chance(seen.size, rng, 0.5), np.minimum(near, able.size - 1), even)
    return np.ones(seen.size, bool), able[pick], seen.thing.shape[1] - 1 - able[pick]


def before_thing(seen: Seen, rng: np.random.Generator) -> Asked:
    """What was on screen so many seconds ago."""
    valid, ago, place = _ago(seen, rng)
    return asked(valid, ago, named(at(seen.thing, place), "thing"), place)


def before_sound(seen: Seen, rng: np.random.Generator) -> Asked:
    """What was heard so many seconds ago."""
    valid, ago, place = _ago(seen, rng)
    sound = at(seen.sound, place)
    return asked(valid & (sound != spec.SPOKEN), ago, SOUND_ANSWERS[sound], place)


def before_scene(seen: Seen, _: np.random.Generator) -> Asked:
    """What was on screen before the present scene."""
    earlier = seen.scene < seen.scene[:, -1:]
    place = last(earlier)
    return asked(earlier.any(axis=1), -1, named(at(seen.thing, place), "thing"), place)


def before_digit(seen: Seen, _: np.random.Generator) -> Asked:
    """The digit before the last digit."""
    digit = seen.is_kind("digit")
    newest = at(seen.scene, last(digit))
    earlier = digit & (seen.scene < newest[:, None])
    place = last(earlier)
    answer = named(at(seen.thing, place), "digit")
    return asked(earlier.any(axis=1), -1, answer, place)


def before_word(back: int) -> Callable[[Seen, np.random.Generator], Asked]:
    """The last word, or the one ``back - 1`` words before it."""

    def put(seen: Seen, _: np.random.Generator) -> Asked:
        later = np.cumsum(seen.word[:, ::-1], axis=1)[:, ::-1]
        here = seen.word & (later == back)
        place = last(here)
        return asked(here.any(axis=1), -1, SOUND_ANSWERS[at(seen.sound, place)], place)

    return put


def ordered(topic: str, first: bool) -> Callable[[Seen, np.random.Generator], Asked]:
    """The first word or thing of a kind, or the second to fifth."""

    def put(seen: Seen, rng: np.random.Generator) -> Asked:
        events = seen.word if topic == "word" else seen.is_kind(topic) & seen.opens
        number = np.zeros(seen.size, np.int64)
        if not first:
            number = rng.integers(1, len(spec.ORDINALS), seen.size)
        here = events & (np.cumsum(events, axis=1) == number[:, None] + 1)
        place = here.argmax(axis=1)
        if topic == "word":
            answer = SOUND_ANSWERS[at(seen.sound, place)]
        else:
            answer = named(at(seen.thing, place), topic)
        return asked(here.any(axis=1), -1 if first else number, answer, place)

    return put
