"""What ships knows its world again at other sizes and rates, through files and codecs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_clips import Film, Track, card, resampled, scaled, write_odd

from omni_core import Session, UnitMedia
from omni_core.units import Modality
from omnilive import load, open_clip
from streamworld import banks, render, script, spec

pytestmark = pytest.mark.shipped

Answers = list[tuple[str, ...]]
Scene = tuple[np.ndarray, np.ndarray, Answers]

# Side of a square picture, rate, channels, codec, suffix, and what may be taken for something else:
# a quiet room through a telephone, or through mp3, is heard as noise or music.
KNOWN = {
    "64 at 8 kHz": (64, 8_000, 1, "pcm_s16le", "mkv", ("silence",)),
    "224 at 11.025 kHz": (224, 11_025, 2, "pcm_s16le", "mkv", ()),
    "480 at 22.05 kHz": (480, 22_050, 1, "libmp3lame", "mkv", ("silence",)),
    "1080 at 44.1 kHz": (1080, 44_100, 2, "aac", "mp4", ()),
    "336 at 48 kHz": (336, 48_000, 2, "libopus", "mkv", ()),
    "112 at 48 kHz, 5.1": (112, 48_000, 6, "pcm_s16le", "mkv", ()),
}
QUESTIONS = ("what is on the screen?", "what do you hear?")
UNITS = 16


@pytest.fixture(scope="module")
def model() -> Any:
    backend = "cuda" if importlib.util.find_spec("torch") else "mlx"
    return load(backend=backend, device="cpu", weights="f32")


@pytest.fixture(scope="module")
def scene() -> Scene:
    """Frames, sound and truths of a stream of the test split."""
    units = script.write(7, 1, UNITS, "test").flat()
    bank = banks.load(Path(banks.__file__).parent, "test")
    things = [" ".join(spec.thing_words(int(thing))) for thing in units.thing]
    truths = list(zip(things, map(spec.sound_word, units.sound.tolist()), strict=True))
    return render.frames(units, bank), render.sounds(units, bank), truths


@pytest.fixture(scope="module")
def plain(model: Any, scene: Scene) -> Answers:
    """What is said of the stream as it was rendered: 112 pixels, 16 kHz, no codec."""
    frames, sounds, _ = scene
    pairs = enumerate(zip(frames, sounds, strict=True))
    return said(model, [UnitMedia(t, t + 1, (frame,), sound) for t, (frame, sound) in pairs])


def said(model: Any, units: Iterable[UnitMedia]) -> Answers:
    """What is seen and heard in each unit."""
    session, answers = Session(model, budget=2048, retention="no-slide", max_tokens=4), []
    for unit in units:
        session.append(unit)
        answers.append(tuple(session.ask(question, branch=True) for question in QUESTIONS))
    return answers


def differences(before: Answers, after: Answers) -> list[tuple[int, str, str]]:
    return [
        (unit, one, other)
        for unit, pair in enumerate(zip(before, after[: len(before)], strict=True))
        for one, other in zip(*pair, strict=True)
        if one != other
    ]


def test_the_plain_stream_is_known(plain: Answers, scene: Scene) -> None:
    assert len({answer for pair in plain for answer in pair}) > UNITS
    assert len(differences(scene[2], plain)) <= 3


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_known_at_any_size_and_rate(
    name: str, model: Any, scene: Scene, plain: Answers, tmp_path: Path
) -> None:
    side, rate, channels, codec, suffix, unsure = KNOWN[name]
    frames, sounds, _ = scene
    film = Film.steady([scaled(frame, side, side) for frame in frames], 1, form="yuv420p")
    wave = resampled(sounds.reshape(-1), 16_000, rate)
    track = Track(np.repeat(wave[None], channels, axis=0), rate, codec)
    clip = write_odd(tmp_path / f"clip.{suffix}", film, track)
    other = differences(plain, said(model, open_clip(clip, model)))
    # Answers on the edge tip: over 128 units, 97 to 100 % stayed in every one of these.
    assert len([found for found in other if found[1] not in unsure]) <= 2, other


@pytest.mark.parametrize(
    ("width", "height", "tokens"), [(640, 480, 12), (1280, 720, 15), (720, 1280, 15)]
)
def test_frames_that_are_not_square_pass(
    width: int, height: int, tokens: int, model: Any, tmp_path: Path
) -> None:
    clip = write_odd(tmp_path / "clip.mkv", Film.steady([card(width, height)] * 2, 1), None)
    units = list(open_clip(clip, model))
    taken, _ = model.frontend.unit(units[0], model.frontend.open("")[1])
    assert np.count_nonzero(taken.block.modality == Modality.VISION) == tokens
    assert all(seen for seen, _ in said(model, units))
