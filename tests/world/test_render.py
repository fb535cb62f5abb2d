"""Pictures and sound: what a script says is what is there, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streamworld import render, script, spec
from streamworld.banks import Bank
from streamworld.dice import hashed, noise
from streamworld.render_frames import INKS, SIZE
from tests.world.conftest import CLIP_HERTZ


def units_of(thing: int = 0, sound: int = 0, count: int = 24) -> script.Units:
    units = script.write(9, 1, count, dwell=1.0).flat()
    return replace(
        units, thing=np.full(count, thing, np.uint8), sound=np.full(count, sound, np.uint8)
    )


def test_a_unit_alone_is_as_in_a_batch(bank: Bank) -> None:
    units = script.write(4, 2, 40, spoken=1.0).flat()
    rows = np.asarray([0, 7, 66, 79])
    assert np.array_equal(render.frames(units, bank)[rows], render.frames(units[rows], bank))
    assert np.array_equal(render.sounds(units, bank)[rows], render.sounds(units[rows], bank))


def test_shapes_and_types(bank: Bank) -> None:
    units = units_of(count=3)
    frames, sounds = render.frames(units, bank), render.sounds(units, bank)
    assert (frames.shape, frames.dtype) == ((3, 112, 112, 3), np.uint8)
    assert (sounds.shape, sounds.dtype) == ((3, 16_000), np.float32)
    assert np.abs(sounds).max() <= 1


@pytest.mark.parametrize("colour", range(len(spec.COLOURS)))
def test_a_shape_has_the_colour_of_its_name(bank: Bank, colour: int) -> None:
    units = units_of(spec.shape(colour, 1), count=48)
    # As large as can be, so that the frame's middle lies on the shape.
    units.look[:, SIZE] = 65_535
    middle = render.frames(units, bank)[:, 36:76, 36:76].mean(axis=(1, 2)) / 255
    # The camera's exposure is not known.
    exposed = _GAINS[:, None, None] * INKS
    distance = np.abs(middle[:, None, None] - exposed).sum(axis=3).min(axis=1)
    assert (distance.argmin(axis=1) == colour).mean() > 0.9


_GAINS = np.linspace(0.75, 1.15, 9)


def test_a_scene_moves_little_and_is_another_frame(bank: Bank) -> None:
    units = units_of(spec.FIRST_DIGIT + 3, count=2)
    one = replace(units, look=units.look[[0, 0]], shot=units.shot[[0, 1]], age=np.int32([0, 1]))
    other = replace(units, age=np.int32([0, 0]))
    first, second = render.frames(one, bank).astype(float)
    apart, unlike = render.frames(other, bank).astype(float)
    assert 0 < np.abs(first - second).mean() < np.abs(apart - unlike).mean()


def test_silence_is_quieter_than_noise(bank: Bank) -> None:
    quiet = render.sounds(units_of(sound=spec.SILENCE), bank)
    loud = render.sounds(units_of(sound=spec.NOISE), bank)
    assert quiet.std(axis=1).max() < loud.std(axis=1).min()
    assert quiet.std(axis=1).min() > 0


@pytest.mark.parametrize("word", [0, 9, 25])
def test_a_word_is_its_clip_at_some_pace(bank: Bank, word: int) -> None:
    units = units_of(sound=spec.FIRST_WORD + word)
    spectrum = np.abs(np.fft.rfft(render.sounds(units, bank)))
    peak = spectrum[:, 100:].argmax(axis=1) + 100
    assert (peak > 0.85 * CLIP_HERTZ[word]).all()
    assert (peak < 1.21 * CLIP_HERTZ[word]).all()


def test_a_spoken_question_goes_on_in_the_next_unit(bank: Bank) -> None:
    made = script.write(2, 30, 6, spoken=1.0)
    loud = render.sounds(made.flat(), bank).reshape(30, 6, -1)[:, -2:].std(axis=2)
    # Clips of half a second start anywhere in two seconds.
    assert (loud[:, 0] > 3 * loud[:, 1]).any()
    assert (loud[:, 1] > 3 * loud[:, 0]).any()
    assert (loud.max(axis=1) > 0.01).all()


def test_a_beep_is_short_and_music_is_not(bank: Bank) -> None:
    beep = render.sounds(units_of(sound=spec.BEEP), bank)
    music = render.sounds(units_of(sound=spec.MUSIC), bank)
    heard = [
        (np.abs(wave).reshape(-1, 50, 320).max(axis=2) > 0.25 * np.abs(wave).max(axis=1)[:, None])
        .mean(axis=1)
        .mean()
        for wave in (beep, music)
    ]
    assert heard[0] < 0.5 < heard[1]


def test_a_word_without_clips_is_named(bank: Bank) -> None:
    count = bank.clip_count.copy()
    count[4] = 0
    with pytest.raises(ValueError, match="no clip of four"):
        render.sounds(units_of(sound=spec.FIRST_WORD + 4), replace(bank, clip_count=count))


def test_the_hash_is_lowbias32() -> None:
    def slow(number: int) -> int:
        number ^= number >> 16
        number = number * 0x7FEB352D & 0xFFFFFFFF
        number ^= number >> 15
        number = number * 0x846CA68B & 0xFFFFFFFF
        return number ^ number >> 16

    seeds = np.uint32([0, 1, 4_000_000_000])
    made = hashed(seeds, 5)
    for row, seed in enumerate(seeds.tolist()):
        want = [slow((seed * 0x9E3779B9 + place) & 0xFFFFFFFF) for place in range(5)]
        assert made[row].tolist() == want


def test_noise_is_nearly_normal() -> None:
    drawn = noise(np.uint32([5]), 200_000)
    assert abs(float(drawn.mean())) < 0.01
    assert abs(float(drawn.std()) - 1) < 0.01
