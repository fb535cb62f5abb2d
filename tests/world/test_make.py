"""What goes into the banks: clips of one loudness, drawings that differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from streamworld import make_sounds, spec
from streamworld.mu_law import EXPANDED

pytest.importorskip("PIL")
from streamworld.make_shapes import shape_mask
from streamworld.make_strokes import digit_mask


def tone(hertz: float, seconds: float, rate: int) -> np.ndarray:
    return 0.01 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 48_000])
def test_a_clip_is_cut_to_the_speech_at_one_loudness(rate: int) -> None:
    quiet = np.zeros(rate // 3)
    samples = np.concatenate([quiet, tone(440, 0.4, rate), quiet]).astype(np.float32)
    clip = make_sounds.finished(samples, rate, make_sounds.LONGEST_WORD)
    assert clip is not None
    heard = EXPANDED[clip]
    assert 0.4 * 16_000 <= heard.size < 0.5 * 16_000
    assert abs(float(np.sqrt(np.mean(heard**2))) - 0.12) < 0.01
    peak = np.abs(np.fft.rfft(heard, 16_000)).argmax()
    assert abs(int(peak) - 440) < 4


def test_a_slow_clip_is_sped_up_not_cut() -> None:
    samples = tone(440, 1.2, 16_000).astype(np.float32)
    clip = make_sounds.finished(samples, 16_000, make_sounds.LONGEST_WORD)
    assert clip is not None
    assert clip.size <= make_sounds.LONGEST_WORD
    assert np.abs(np.fft.rfft(EXPANDED[clip], 16_000)).argmax() > 590


def test_nothing_said_gives_no_clip() -> None:
    assert make_sounds.finished(np.zeros(40, np.float32), 16_000, 13_600) is None


def test_pauses_part_a_recording() -> None:
    pause = np.zeros(1_600)
    said = [tone(300, 0.3, 16_000), pause, tone(500, 0.2, 16_000), pause]
    parts = make_sounds.phrases(np.concatenate([pause, *said]).astype(np.float32))
    assert [round(part.size / 16_000, 1) for part in parts] == [0.3, 0.2]


def test_no_voice_is_in_two_splits() -> None:
    names = {s: {v.name for v in make_sounds.voices(s)} for s in ("train", "validation", "test")}
    for one in names:
        for other in names:
            if one != other:
                variants = [{n.split("+")[-1] for n in names[s]} for s in (one, other)]
                assert not variants[0] & variants[1]
    engines = {s: {name.split(":")[0] for name in names[s]} for s in names}
    assert "festival" in engines["test"] - engines["train"] - engines["validation"]


@pytest.mark.parametrize("draw", [shape_mask, digit_mask])
def test_drawings_of_one_label_differ_and_stay_on_the_page(
    draw: Callable[[int, np.random.Generator], np.ndarray],
) -> None:
    rng = np.random.default_rng(1)
    for label in range(min(len(spec.SHAPES), len(spec.DIGITS))):
        masks = [draw(label, rng) for _ in range(6)]
        assert len({mask.tobytes() for mask in masks}) == 6
        for mask in masks:
            assert 0.01 < (mask > 128).mean() < 0.6
            assert not mask[[0, -1]].any() and not mask[:, [0, -1]].any()
