"""Clips of every kind become one gapless timeline, or one clear error."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip, write_leap, write_subtitles, write_two_sizes

from omni_core.errors import MediaError
from omnilive.clip import Clip, probe
from omnilive.media import Picture, Sound


def play(clip: Clip) -> tuple[list[Picture], list[Sound], list[str]]:
    warnings: list[str] = []
    media = list(clip.play(warnings.append))
    ready = [item.ready for item in media]
    assert all(after >= before - 1e-6 for before, after in pairwise(ready))
    pictures = [item for item in media if isinstance(item, Picture)]
    sounds = [item for item in media if isinstance(item, Sound)]
    end = 0.0
    for sound in sounds:
        assert sound.samples.dtype == np.float32
        assert sound.time == pytest.approx(end, abs=1e-6)
        end = sound.stop
    return pictures, sounds, warnings


def wave(sounds: list[Sound]) -> np.ndarray:
    return np.concatenate([sound.samples for sound in sounds])


def test_picture_and_sound_to_the_last_part_second(tmp_path: Path) -> None:
    clip = probe(write_clip(tmp_path / "clip.mp4", seconds=2.4, sound_seconds=2.37))
    pictures, sounds, warnings = play(clip)
    assert [round(picture.time, 3) for picture in pictures] == [n / 10 for n in range(24)]
    assert pictures[-1].stop == pytest.approx(2.4)
    assert pictures[0].rgb.shape == (48, 64, 3)
    assert pictures[-1].rgb.mean() > pictures[0].rgb.mean() + 100
    assert sounds[-1].stop == pytest.approx(2.4)
    assert warnings == []


def test_sound_is_resampled_and_keeps_its_tail(tmp_path: Path) -> None:
    clip = probe(write_clip(tmp_path / "tone.m4a", seconds=2.37, fps=None, hertz=1000))
    pictures, sounds, _ = play(clip)
    samples = wave(sounds)
    assert pictures == [] and clip.picture is None
    assert abs(samples.size - 2.37 * 16_000) <= 0.1 * 16_000
    body = samples[8000:24_000]
    assert np.argmax(np.abs(np.fft.rfft(body))) == 1000
    assert 0.4 < np.abs(body).max() <= 0.55
    assert np.abs(samples[int(2.3 * 16_000) : int(2.36 * 16_000)]).max() > 0.3


def test_mute_clip_has_no_sound_at_all(tmp_path: Path) -> None:
    clip = probe(write_clip(tmp_path / "mute.mp4", rate=None))
    pictures, sounds, _ = play(clip)
    assert clip.sound is None and sounds == [] and len(pictures) == 20


def test_sound_that_starts_late_and_ends_early_is_padded_in_step(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "late.mkv", seconds=3.0, sound_seconds=1.0, sound_start=1.0)
    pictures, sounds, _ = play(probe(path))
    samples = wave(sounds)
    assert samples.size == 3 * 16_000 and len(pictures) == 30
    loud = [np.abs(samples[int(t * 16_000) :][:1600]).max() for t in (0.5, 1.5, 2.5)]
    assert loud[0] < 0.01 and loud[1] > 0.3 and loud[2] < 0.01


@pytest.mark.parametrize("what", ["picture", "sound"])
@pytest.mark.parametrize("seconds", [3700.0, 7200.0, 31_536_000.0])
def test_a_leap_of_hours_is_refused(tmp_path: Path, what: str, seconds: float) -> None:
    clip = probe(write_leap(tmp_path / "leap.mkv", what, seconds))
    # Far fewer pieces than would fill the hole.
    with pytest.raises(MediaError, match=f"leap.mkv: the {what} leaps from [01].. s to") as error:
        list(islice(clip.play(print), 1000))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("what", ["picture", "sound"])
def test_a_pause_of_under_an_hour_is_played(tmp_path: Path, what: str) -> None:
    clip = probe(write_leap(tmp_path / "pause.mkv", what, 3500.0))
    pictures, sounds, _ = play(clip)
    assert len(pictures) == 20
    assert sounds[-1].stop == pytest.approx(3502, abs=0.1)


def test_frame_size_may_change_inside_a_clip(tmp_path: Path) -> None:
    pictures, _, _ = play(probe(write_two_sizes(tmp_path / "sizes.mkv")))
    shapes = [picture.rgb.shape[:2] for picture in pictures]
    assert shapes == [(359, 641)] * 5 + [(720, 1280)] * 5


def test_damage_in_the_middle_is_told_once_and_skipped(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.ts", seconds=3.0, fps=10, size=(320, 240))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 600] = bytes(600)
    path.write_bytes(data)
    pictures, _, warnings = play(probe(path))
    assert len(pictures) >= 10
    assert len(warnings) <= 2


@pytest.mark.parametrize("name", ["noise.mp4", "notes.txt", "empty.mp4"])
def test_unreadable_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    content = {"noise.mp4": bytes(range(256)) * 9, "notes.txt": b"hello\n" * 9, "empty.mp4": b""}
    path.write_bytes(content[name])
    with pytest.raises(MediaError, match=r"not readable as a clip|no usable stream") as error:
        probe(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="no such file"):
        probe(tmp_path / "none.mp4")
    with pytest.raises(MediaError, match="not a file"):
        probe(tmp_path)


def test_container_without_picture_and_sound(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="no usable stream: it holds subtitle"):
        probe(write_subtitles(tmp_path / "words.srt"))


def test_truncated_clip_is_refused_or_played_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(MediaError, match="not readable as a clip"):
        probe(path)
