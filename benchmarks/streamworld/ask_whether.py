"""Questions about the whole stream: did it, how often, is it so yet; and about no stream at all."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamworld import spec
from streamworld.outside import sentence_numbers
from streamworld.seen import (
    NO,
    YES,
    Asked,
    Bools,
    Ints,
    Seen,
    any_of,
    asked,
    at,
    chance,
    in_vain,
    last,
    times_said,
)


def did_word(seen: Seen, rng: np.random.Generator) -> Asked:
    """Whether a word was said."""
    heard = times_said(seen) > 0
    yes = chance(seen.size, rng, 0.5)
    able = np.where(yes[:, None], heard, ~heard)
    word = any_of(able, rng)
    place = last(seen.sound == spec.FIRST_WORD + word[:, None])
    answer = np.where(yes, YES, NO)
    return asked(able.any(axis=1), word, answer, np.where(yes, place, -1))


def did_thing(seen: Seen, rng: np.random.Generator) -> Asked:
    """Whether a thing was shown."""
    shown = np.zeros((seen.size, spec.THINGS), bool)
    shown[np.arange(seen.size)[:, None], seen.thing] = True
    yes = chance(seen.size, rng, 0.5)
    able = np.where(yes[:, None], shown, ~shown)
    # As many questions about digits and clothes as about shapes, which are many more.
    part = rng.choice(3, seen.size, p=(0.5, 0.25, 0.25))
    kinds = np.zeros(spec.THINGS, np.int64)
    kinds[spec.FIRST_DIGIT :] = 1
    kinds[spec.FIRST_CLOTHING :] = 2
    able &= (kinds == part[:, None]) & (np.arange(spec.THINGS) != spec.NOTHING)
    thing = any_of(able, rng)
    place = last(seen.thing == thing[:, None])
    answer = np.where(yes, YES, NO)
    return asked(able.any(axis=1), thing, answer, np.where(yes, place, -1))


def counted(number: Ints, valid: Bools, slot: Any) -> Asked:
    """A number as the answer, unless it is more than a question counts."""
    codes = np.asarray([spec.ANSWER[str(n)] for n in range(spec.MOST_COUNTED + 1)])
    answer = codes[np.minimum(number, spec.MOST_COUNTED)]
    return asked(valid & (number <= spec.MOST_COUNTED), slot, answer, -1)


def count_beeps(seen: Seen, _: np.random.Generator) -> Asked:
    """How many beeps there were."""
    return counted((seen.sound == spec.BEEP).sum(axis=1), np.ones(seen.size, bool), -1)


def count_word(seen: Seen, rng: np.random.Generator) -> Asked:
    """How often a word was said."""
    times = times_said(seen)
    # Rarely about a word never said.
    word = any_of((times > 0) | chance(seen.size, rng, 0.1)[:, None], rng)
    valid = (times > 0).any(axis=1)
    return counted(at(times, word), valid, word)


def count_shape(seen: Seen, rng: np.random.Generator) -> Asked:
    """How many scenes showed a shape of one form."""
    begins = seen.opens & seen.is_kind("shape")
    form = (seen.thing - spec.FIRST_SHAPE) % len(spec.SHAPES)
    asked_form = rng.integers(0, len(spec.SHAPES), seen.size)
    number = (begins & (form == asked_form[:, None])).sum(axis=1)
    return counted(number, (number > 0) | chance(seen.size, rng, 0.2), asked_form)


def until_word(seen: Seen, rng: np.random.Generator) -> Asked:
    """Whether a word is being said."""
    now = seen.sound[:, -1] - spec.FIRST_WORD
    yes = chance(seen.size, rng, 0.5)
    # What is refused is often a word that was said, but not now.
    other = at(seen.sound, rng.integers(0, seen.sound.shape[1], seen.size)) - spec.FIRST_WORD
    any_word = rng.integers(0, len(spec.WORDS), seen.size)
    other = np.where((other >= 0) & (other < len(spec.WORDS)), other, any_word)
    word = np.where(yes, now, other)
    # Rarely asked where no word is said now: there is but one answer then.
    said = seen.word[:, -1] | (in_vain(seen, rng, 0.3) & ~yes)
    valid = said & (yes | (other != now)) & (seen.sound[:, -1] != spec.SPOKEN)
    return asked(valid, word, np.where(yes, YES, NO), seen.sound.shape[1] - 1)


def until_thing(seen: Seen, rng: np.random.Generator) -> Asked:
    """Whether a thing is on screen."""
    now = seen.thing[:, -1]
    yes = chance(seen.size, rng, 0.5)
    other = at(seen.thing, rng.integers(0, seen.thing.shape[1], seen.size))
    any_thing = rng.integers(1, spec.THINGS, seen.size)
    other = np.where((other != now) & (other != spec.NOTHING), other, any_thing)
    thing = np.where(yes, now, other)
    valid = (thing != spec.NOTHING) & (yes | (other != now))
    return asked(valid, thing, np.where(yes, YES, NO), seen.thing.shape[1] - 1)


def until_beep(seen: Seen, rng: np.random.Generator) -> Asked:
    """Whether there were so many beeps by now."""
    number = (seen.sound == spec.BEEP).sum(axis=1)
    yes = chance(seen.size, rng, 0.5)
    low = np.where(yes, 1, number + 1)
    high = np.where(yes, number, spec.MOST_COUNTED)
    wanted = low + (rng.random(seen.size) * np.maximum(1, high - low + 1)).astype(np.int64)
    valid = (wanted >= 1) & (wanted <= high)
    return asked(valid, wanted, np.where(yes, YES, NO), -1)


def outside(seen: Seen, rng: np.random.Generator) -> Asked:
    """What no stream can tell."""
    sentence = rng.choice(sentence_numbers(seen.split), seen.size)
    answer = np.full(seen.size, spec.ANSWER[spec.OUTSIDE])
    return asked(np.ones(seen.size, bool), sentence, answer, -1)
