"""Questions that find a moment by what was there: when, while, after."""

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
    any_of,
    asked,
    at,
    in_vain,
    named,
    times_said,
)


def _only_word(seen: Seen, mask: Bools, rng: np.random.Generator) -> tuple[Bools, Ints, Ints]:
    """A word said once, at a marked unit: whether there is one, the word, its unit."""
    once = times_said(seen) == 1
    word = np.clip(seen.sound - spec.FIRST_WORD, 0, len(spec.WORDS) - 1)
    able = mask & seen.word & np.take_along_axis(once, word, axis=1)
    place = any_of(able, rng)
    return able.any(axis=1), at(word, place), place


def _or_in_vain(seen: Seen, rng: np.random.Generator, about: Asked) -> Asked:
    """Now and then the same about a word that was never said."""
    never = times_said(seen) == 0
    vain = in_vain(seen, rng, IN_VAIN / 3) & never.any(axis=1)
    return Asked(
        about.valid | vain,
        np.where(vain[:, None], np.stack([any_of(never, rng), about.slots[:, 1]], 1), about.slots),
        np.where(vain[:, None], [NONE, -1], about.answer),
        np.where(vain, -1, about.evidence),
    )


def when_heard(topic: str) -> Callable[[Seen, np.random.Generator], Asked]:
    """What was on screen when a word was heard that was said once."""

    def put(seen: Seen, rng: np.random.Generator) -> Asked:
        mask = np.ones(seen.thing.shape, bool)
        if topic != "thing":
            mask = seen.is_kind(topic) | in_vain(seen, rng, IN_VAIN / 3)[:, None]
        valid, word, place = _only_word(seen, mask, rng)
        answer = named(at(seen.thing, place), topic)
        return _or_in_vain(seen, rng, asked(valid, word, answer, place))

    return put


def _only_scene(seen: Seen, mask: Bools, rng: np.random.Generator) -> tuple[Bools, Ints, Ints]:
    """A thing shown in one scene alone that begins at a marked unit: and its first unit."""
    begins = seen.opens & (seen.thing != spec.NOTHING)
    size = seen.size
    shown = np.zeros((size, spec.THINGS), np.int64)
    np.add.at(shown, (np.arange(size)[:, None], seen.thing), begins)
    able = mask & begins & (np.take_along_axis(shown, seen.thing, axis=1) == 1)
    place = any_of(able, rng)
    return able.any(axis=1), at(seen.thing, place), place


def when_word(seen: Seen, rng: np.random.Generator) -> Asked:
    """The one word said while a thing was there that was shown once."""
    size, units = seen.thing.shape
    said = np.zeros((size, units + 1), np.int64)
    np.add.at(said, (np.arange(size)[:, None], seen.scene), seen.word)
    count = np.take_along_axis(said, seen.scene, axis=1)
    fits = (count == 1) | ((count == 0) & in_vain(seen, rng)[:, None])
    valid, thing, place = _only_scene(seen, fits, rng)
    within = (seen.scene == at(seen.scene, place)[:, None]) & seen.word
    spoken, unit = within.any(axis=1), within.argmax(axis=1)
    # A question being spoken over the scene is a word too: not asked then.
    over = (seen.scene == at(seen.scene, place)[:, None]) & (seen.sound == spec.SPOKEN)
    answer = np.where(spoken, SOUND_ANSWERS[at(seen.sound, unit)], NONE)
    return asked(valid & ~over.any(axis=1), thing, answer, np.where(spoken, unit, place))


def after_word(seen: Seen, rng: np.random.Generator) -> Asked:
    """The word that follows one said once."""
    later = np.cumsum(seen.word[:, ::-1], axis=1)[:, ::-1]
    valid, word, place = _only_word(seen, later > 1, rng)
    following = seen.word & (np.arange(seen.sound.shape[1]) > place[:, None])
    unit = following.argmax(axis=1)
    answer = SOUND_ANSWERS[at(seen.sound, unit)]
    return _or_in_vain(seen, rng, asked(valid, word, answer, unit))


def after_thing(seen: Seen, rng: np.random.Generator) -> Asked:
    """What follows a thing shown once."""
    mask = seen.scene < seen.scene[:, -1:]
    valid, thing, place = _only_scene(seen, mask, rng)
    following = seen.scene > at(seen.scene, place)[:, None]
    unit = following.argmax(axis=1)
    return asked(valid, thing, named(at(seen.thing, unit), "thing"), unit)
