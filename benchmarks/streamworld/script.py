"""The script of streams: what is seen and heard in each unit, and the dice of how it looks.

A script is integers alone. ``render`` turns it into pictures and sound; questions and their answers
need nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from streamworld import spec

SPLITS = ("train", "validation", "test")
LOOKS, SHOTS, VOICES = 32, 8, 32
LONG = 8
"""Added to the parts of a spoken question that lies anywhere in three seconds."""

Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class Script:
    """Streams of one length, ``S`` streams of ``U`` units.

    Attributes:
        split: whose voices, hands and pictures the streams are made of.
        thing: what is on screen, ``uint8[S, U]``.
        scene: number of the scene in its stream, ``int32[S, U]``; a scene shows one thing.
        age: units since the scene began, ``int32[S, U]``.
        sound: what is heard, ``uint8[S, U]``.
        part: which second of a spoken question the unit holds, ``uint8[S, U]``: 0 and 1 of two, or
            :data:`LONG` + 0, 1 and 2 of three.
        form: the spoken question in the unit, or 0, ``uint8[S, U]``.
        look: dice of the scene, ``uint16[S, U, 32]``.
        shot: dice of the unit's frame, ``uint16[S, U, 8]``.
        voice: dice of the unit's sound, ``uint16[S, U, 32]``; a spoken question has one set.
        spoken: form of the spoken question at the end, or -1, ``int8[S]``.
    """

    split: str
    thing: Ints
    scene: Ints
    age: Ints
    sound: Ints
    part: Ints
    form: Ints
    look: Ints
    shot: Ints
    voice: Ints
    spoken: Ints

    @property
    def streams(self) -> int:
        """How many streams."""
        return int(self.thing.shape[0])

    @property
    def units(self) -> int:
        """Units of each stream."""
        return int(self.thing.shape[1])

    def take(self, streams: Any) -> Script:
        """Some of the streams, by index, slice or mask along the first axis."""
        arrays = {f.name: getattr(self, f.name)[streams] for f in fields(self)[1:]}
        return Script(self.split, **arrays)

    def flat(self) -> Units:
        """All units of all streams in a row, stream after stream: what rendering takes."""
        names = [field.name for field in fields(Units)]
        size = self.streams * self.units
        return Units(
            **{n: getattr(self, n).reshape(size, *getattr(self, n).shape[2:]) for n in names}
        )


@dataclass(frozen=True)
class Units:
    """Units without their streams: the fields of :class:`Script` with one leading axis."""

    thing: Ints
    age: Ints
    sound: Ints
    part: Ints
    form: Ints
    look: Ints
    shot: Ints
    voice: Ints

    def __len__(self) -> int:
        return int(self.thing.shape[0])

    def __getitem__(self, rows: Any) -> Units:
        return Units(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def write(
    seed: int,
    streams: int,
    units: int,
    split: str = "train",
    *,
    spoken: float = 0.0,
    long: float = 0.0,
    dwell: float = 1.6,
) -> Script:
    """Scripts of ``streams`` streams; the same arguments give the same scripts.

    Each stream draws things and words it never shows, some it shows once, and fills the rest with
    the others, so that questions about the one and only, and about what never was, have answers.

    Args:
        seed: of this batch; splits never share one.
        streams: how many.
        units: seconds of each.
        split: ``train``, ``validation`` or ``test``.
        spoken: share of streams that end in a spoken question.
        long: share of those in which the question lies anywhere in three seconds, and not in two.
        dwell: mean units that a scene lasts.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split), units])
    thing, scene, age = _scenes(rng, streams, units, dwell)
    sound = _sounds(rng, streams, units)
    look = rng.integers(0, 65536, (streams, units, LOOKS), np.uint16)
    first = np.arange(units) - age
    look = np.take_along_axis(look, first[:, :, None], axis=1)
    shot = rng.integers(0, 65536, (streams, units, SHOTS), np.uint16)
    voice = rng.integers(0, 65536, (streams, units, VOICES), np.uint16)
    seconds = np.full(streams, 2)
    if long and units > 3:
        seconds += rng.random(streams) < long
    asked = _spoken_forms(rng, thing, sound, spoken, seconds)
    part = np.zeros((streams, units), np.uint8)
    form = np.zeros((streams, units), np.uint8)
    for size in (2, 3):
        rows = np.flatnonzero((asked >= 0) & (seconds == size))
        if rows.size:
            sound[rows, -size:] = spec.SPOKEN
            part[rows, -size:] = np.arange(size) + (LONG if size == 3 else 0)
            form[rows, -size:] = asked[rows, None]
            voice[rows, -size:] = voice[rows, -size, None]
    return Script(split, thing, scene, age, sound, part, form, look, shot, voice, asked)


def _scenes(rng: np.random.Generator, streams: int, units: int, dwell: float) -> tuple[Ints, ...]:
    cut = rng.random((streams, units)) < 1 / dwell
    cut[:, 0] = True
    scene = np.cumsum(cut, axis=1, dtype=np.int32) - 1
    places = np.arange(units, dtype=np.int32)
    age = places - np.maximum.accumulate(np.where(cut, places, 0), axis=1)
    # A scene is a shape, a digit, a piece of clothing or an empty screen.
    kind = rng.choice(4, (streams, units), p=(0.05, 0.42, 0.31, 0.22))
    drawn = np.zeros((streams, units), np.int64)
    for number, first, count, absent, once in _KINDS:
        rows = _with_rare(rng, kind == number, count, absent, once)
        drawn = np.where(kind == number, first + rows, drawn)
    # No scene shows what the one before it showed.
    for place in range(1, units):
        same = (drawn[:, place] == drawn[:, place - 1]) & (drawn[:, place] != spec.NOTHING)
        drawn[same, place] = spec.NOTHING
        both = (drawn[:, place] == spec.NOTHING) & (drawn[:, place - 1] == spec.NOTHING)
        # Two empty screens in a row are told apart by nothing, so the second shows a shape.
        drawn[both, place] = rng.integers(spec.FIRST_SHAPE, spec.FIRST_DIGIT, int(both.sum()))
    return np.take_along_axis(drawn, scene, axis=1).astype(np.uint8), scene, age


# Kind of scene, its first thing, how many things, how many never and how many once in a stream.
_KINDS = (
    (1, spec.FIRST_SHAPE, spec.FIRST_DIGIT - spec.FIRST_SHAPE, 24, 6),
    (2, spec.FIRST_DIGIT, len(spec.DIGITS), 2, 2),
    (3, spec.FIRST_CLOTHING, len(spec.CLOTHES), 2, 2),
)


def _with_rare(
    rng: np.random.Generator, here: npt.NDArray[np.bool_], count: int, absent: int, once: int
) -> npt.NDArray[np.int64]:
    """Numbers below ``count`` for all places; those marked ``here`` show each rare one once."""
    streams, units = here.shape
    order = rng.permuted(np.tile(np.arange(count), (streams, 1)), axis=1)
    pick = rng.integers(absent + once, count, (streams, units))
    # Places that count, in random order, come first: the first `once` of them get the rare ones.
    rank = np.argsort(np.where(here, rng.random((streams, units)), 2.0), axis=1)
    few = min(once, units)
    rare = np.arange(absent, absent + few)
    np.put_along_axis(pick, rank[:, :few], np.broadcast_to(rare, (streams, few)), axis=1)
    return np.take_along_axis(order, pick, axis=1)


def _sounds(rng: np.random.Generator, streams: int, units: int) -> Ints:
    kind = rng.choice(4, (streams, units), p=(0.2, 0.64, 0.08, 0.08))
    table = np.asarray([spec.SILENCE, spec.FIRST_WORD, spec.MUSIC, spec.NOISE])
    sound = table[kind]
    word = spec.FIRST_WORD + _with_rare(rng, kind == 1, len(spec.WORDS), 6, 6)
    sound = np.where(kind == 1, word, sound)
    # As many beeps as a question may count, whatever the length.
    beeps = rng.integers(0, np.minimum(spec.MOST_COUNTED, units // 3 + 1) + 1, streams)
    rank = np.argsort(np.argsort(rng.random((streams, units)), axis=1), axis=1)
    return np.where(rank < beeps[:, None], spec.BEEP, sound).astype(np.uint8)


def _spoken_forms(
    rng: np.random.Generator, thing: Ints, sound: Ints, share: float, seconds: Ints
) -> Ints:
    """Which question is spoken at each stream's end, -1 for none."""
    streams, units = thing.shape
    chosen = np.full(streams, -1, np.int8)
    if units < 3:
        return chosen
    last = thing[:, -1]
    shape = (last >= spec.FIRST_SHAPE) & (last < spec.FIRST_DIGIT)
    digit = (last >= spec.FIRST_DIGIT) & (last < spec.FIRST_CLOTHING)
    before = np.arange(units) < units - seconds[:, None]
    word = (before & (sound >= spec.FIRST_WORD) & (sound < spec.BEEP)).any(axis=1)
    digits = ((thing >= spec.FIRST_DIGIT) & (thing < spec.FIRST_CLOTHING)).any(axis=1)
    fits = {
        ("now", "digit"): digit,
        ("now", "colour"): shape,
        ("now", "shape"): shape,
        ("before", "word"): word,
        ("first", "word"): word,
        ("first", "digit"): digits,
    }
    always = np.ones(streams, bool)
    able = np.stack([fits.get(form[:2], always) for form in spec.SPOKEN_FORMS], axis=1)
    # What can be asked of few streams comes first there.
    rare = np.asarray([0.4 if form[0] == "now" else 1.0 for form in spec.SPOKEN_FORMS])
    score = np.where(able, rng.random(able.shape) ** rare, -1.0)
    asked = rng.random(streams) < share
    return np.where(asked, score.argmax(axis=1), -1).astype(np.int8)
