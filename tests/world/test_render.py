"""Pictures and sound: what a script says is what is there, whatever else is in the batch."""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamworld import render, script, spec
from streamworld.banks import Bank
from streamworld.dice import hashed, noise
from streamworld.render_frames import (
    ANGLE,
    BLUR,
    CENTRE_X,
    CENTRE_Y,
    GROUND,
    GROUND_B,
    INK,
    INKS,
    SIZE,
)
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


def test_a_square_frame_is_what_it_has_always_been(bank: Bank) -> None:
    units = script.write(12, 1, 24, "train", dwell=1.0).flat()
    made = render.frames(units, bank, 0.3)
    assert hashlib.sha256(made.tobytes()).hexdigest()[:16] == "158f056695dcb0ad"


@pytest.mark.parametrize("size", [(84, 112), (84, 140), (112, 84), (140, 84)])
def test_a_thing_fits_the_shorter_side_and_roams_over_the_longer(
    bank: Bank, size: tuple[int, int]
) -> None:
    white = spec.COLOURS.index("white")
    units = units_of(spec.shape(white, 1), count=48)
    units.look[:, SIZE], units.look[:, ANGLE] = 65_535, 32_768
    # Sharp, on plain black.
    units.look[:, BLUR], units.look[:, GROUND : GROUND_B + 3] = 32_768, 0
    units.look[:, INK : INK + 3] = 65_535
    units.look[:, CENTRE_X] = units.look[:, CENTRE_Y] = np.linspace(0, 65_535, 48)
    frames = render.frames(units, bank, size=size).astype(int)
    empty = render.frames(replace(units, thing=np.zeros(48, np.uint8)), bank, size=size)
    shown = np.abs(frames - empty).max(axis=3) > 20
    assert shown.mean(axis=(1, 2)).min() > 0.3
    long = int(np.argmax(size))
    across = shown.any(axis=2 - long)
    first = across.argmax(axis=1)
    last = size[long] - 1 - across[:, ::-1].argmax(axis=1)
    # The bank's glyphs fill 42 of 48 parts of a thing's side.
    side = 108 * min(size) / 112 * 42 / 48
    assert np.abs(last - first + 1 - side).max() < 0.12 * side
    assert first.min() < 12
    assert last.max() > size[long] - 12


def test_a_frame_larger_than_the_photographs_is_refused(bank: Bank) -> None:
    with pytest.raises(ValueError, match="168x56 pixels, expected at most the 144 a side"):
        render.frames(units_of(count=1), bank, size=(56, 168))


def test_a_clip_has_the_shape_that_is_asked_for(bank: Bank, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    made, path = script.write(3, 1, 2, "test"), tmp_path / "wide.mp4"
    clips = importlib.import_module("streamworld.clips")
    clips.write(path, made, 0, bank, size=(84, 112), pixels=(480, 640))
    with av.open(str(path)) as file:
        seen = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    assert seen.shape == (10, 480, 640, 3)
    want = render.frames(made.flat(), bank, 0.5, (84, 112)).astype(float)
    # The middle of each pixel that was repeated.
    rows, columns = (np.arange(n) * 40 // 7 + 3 for n in (84, 112))
    assert np.abs(seen[2::5, rows[:, None], columns] - want).mean() < 12
    clips.write(path, made, 0, bank, size=(140, 84))
    with av.open(str(path)) as file:
        assert (file.streams.video[0].height, file.streams.video[0].width) == (420, 252)


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
