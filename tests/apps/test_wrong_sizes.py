"""Pictures of any size and sound of any rate, or none of either, go through the same frontend."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_clips import Film, Track, card, turned, write_odd

from omnilive import load, open_clip
from omnilive.cli import main

# Width, height, and the tokens of a frame within 56x56 to 112x112 pixels.
PICTURES = {
    "smaller than a token": (10, 10, 4),
    "64": (64, 64, 4),
    "224": (224, 224, 16),
    "480": (480, 480, 16),
    "1080": (1080, 1080, 16),
    "4:3": (640, 480, 12),
    "3:4": (480, 640, 12),
    "16:9": (1280, 720, 15),
    "full HD": (1920, 1080, 15),
    "9:16": (720, 1280, 15),
    "odd sides": (333, 257, 12),
    "odd sides, near 16:9": (641, 359, 10),
    "strip": (640, 16, 25),
}
FORMS = {
    "grey": ("ffv1", "gray"),
    "palette": ("gif", "rgb8"),
    "ten bits": ("libx264", "yuv420p10le"),
    "jpeg": ("mjpeg", "yuvj444p"),
    "with alpha": ("ffv1", "bgra"),
    "vp9": ("libvpx-vp9", "yuv420p"),
}
# Suffix, codec, rate, channels, and whether the container tells the length to the sample.
SOUNDS = {
    "8 kHz, 8 bits": ("wav", "pcm_u8", 8_000, 1, True),
    "telephone": ("wav", "pcm_mulaw", 8_000, 1, True),
    "11.025 kHz": ("wav", "pcm_s16le", 11_025, 2, True),
    "22.05 kHz, float": ("wav", "pcm_f32le", 22_050, 1, True),
    "mp3, 22.05 kHz": ("mp3", "libmp3lame", 22_050, 1, False),
    "mp3, 44.1 kHz": ("mp3", "libmp3lame", 44_100, 2, False),
    "alac, 44.1 kHz": ("m4a", "alac", 44_100, 2, True),
    "aac, 48 kHz": ("m4a", "aac", 48_000, 2, True),
    "5.1": ("mkv", "flac", 44_100, 6, False),
    "opus": ("ogg", "libopus", 48_000, 2, False),
    "flac, 96 kHz": ("flac", "flac", 96_000, 2, True),
}


def tone(rate: int, channels: int = 1, seconds: float = 2.5, hertz: float = 440.0) -> np.ndarray:
    wave = 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
    return np.repeat(wave[None].astype(np.float32), channels, axis=0)


def live(clip: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[Any], list[str]]:
    """Each unit's tokens by sense, and the warnings of a run with a question at its end."""
    words = ["--retention", "no-slide", "--budget", "2048", "--device", "cpu", "--max-tokens", "3"]
    code = main(["live", "--source", str(clip), "--fast", "--jsonl", "--ask", "0: yes?", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    units = [event for event in events if event["event"] == "unit"]
    counts = [unit["tokens"] for unit in units]
    grown = np.diff([unit["kv"]["cells"] for unit in units])
    assert grown.tolist() == [sum(count.values()) for count in counts[1:]]
    assert sum(events[-1]["tokens"].values()) == units[-1]["kv"]["cells"]
    for count in counts:
        # A pair of delimiters for each sense that there is.
        assert count["text"] == 2 * ((count["vision"] > 0) + (count["audio"] > 0))
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    return [(count["vision"], count["audio"]) for count in counts], warnings


def seen_in(clip: Path) -> list[tuple[np.ndarray, ...]]:
    return [unit.frames for unit in open_clip(clip, load(device="cpu"))]


def heard_in(clip: Path) -> np.ndarray:
    units = list(open_clip(clip, load(device="cpu")))
    return np.concatenate([unit.audio for unit in units if unit.audio is not None])


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_any_size(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    width, height, tokens = PICTURES[name]
    film = Film.steady([card(width, height)] * 4, 2)
    clip = write_odd(tmp_path / "clip.mkv", film, Track(tone(16_000, seconds=2.0), 16_000))
    assert live(clip, capsys)[0] == [(tokens, 25)] * 2
    for frames in seen_in(clip):
        assert frames[0].shape == (height, width, 3)


def test_a_strip_too_long_for_the_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_odd(tmp_path / "clip.mkv", Film.steady([card(3300, 16)] * 2, 2), None)
    assert main(["live", "--source", str(clip), "--fast", "--device", "cpu"]) == 1
    assert "3300x16 pixels, expected" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", FORMS)
def test_pictures_of_any_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codec, form = FORMS[name]
    suffix = "gif" if codec == "gif" else "mkv"
    shown = card(96, 64)
    film = Film.steady([shown] * 4, 2, codec=codec, form=form)
    clip = write_odd(tmp_path / f"clip.{suffix}", film, None)
    assert [vision for vision, _ in live(clip, capsys)[0]] == [6, 6]
    (frame,) = seen_in(clip)[0]
    expected = shown.astype(float)
    if name == "grey":
        expected[:] = (expected @ (0.299, 0.587, 0.114))[..., None]
    # Inside the quarters, as codecs blur edges; the palette has 8 levels of red and 4 of blue.
    far = 60 if name == "palette" else 20
    for rows, columns in ((16, 24), (16, 72), (48, 24), (48, 72)):
        assert np.abs(frame[rows, columns] - expected[rows, columns]).max() <= far


def test_a_phones_picture_is_turned_upright(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film = Film.steady([card(96, 64)] * 4, 2, form="yuv420p")
    clip = turned(write_odd(tmp_path / "clip.mp4", film, None))
    assert live(clip, capsys)[0] == [(6, 0)] * 2
    (frame,) = seen_in(clip)[0]
    assert frame.shape == (96, 64, 3)
    # A quarter turn clockwise takes the red quarter from the left to the right.
    assert np.abs(frame[24, 48] - np.array([200.0, 40, 40])).max() < 20
    assert np.abs(frame[24, 16] - np.array([40.0, 40, 200])).max() < 20


@pytest.mark.parametrize(
    ("pixel", "shape", "tokens"),
    [(Fraction(16, 11), (64, 140, 3), 10), (Fraction(8, 9), (64, 85, 3), 6)],
)
def test_pixels_that_are_not_square_are_stretched(
    pixel: Fraction,
    shape: tuple[int, ...],
    tokens: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    film = Film([card(96, 64)] * 2, [0.0, 0.5], pixel=pixel)
    clip = write_odd(tmp_path / "clip.mp4", film, None)
    assert live(clip, capsys)[0] == [(tokens, 0)]
    (frame,) = seen_in(clip)[0]
    assert frame.shape == shape
    assert np.abs(frame[48, shape[1] // 4] - np.array([40.0, 40, 200])).max() < 20


def test_a_damaged_shape_of_pixels_is_not_believed(tmp_path: Path) -> None:
    film = Film([card(96, 64)] * 2, [0.0, 0.5], pixel=Fraction(200, 1))
    (frame,) = seen_in(write_odd(tmp_path / "clip.mp4", film, None))[0]
    assert frame.shape == (64, 96, 3)


def test_a_picture_without_a_fixed_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = [0.0, 0.033, 0.5, 1.1, 1.15, 2.9]
    greys = [np.full((64, 64, 3), 40 * number, np.uint8) for number in range(6)]
    clip = write_odd(tmp_path / "clip.mkv", Film(greys, times), None)
    assert live(clip, capsys)[0] == [(4, 0)] * 3
    levels = [round(float(frames[0].mean()) / 40) for frames in seen_in(clip)]
    assert levels == [0, 2, 4]


@pytest.mark.parametrize("fps", [0.2, 1, 29.97, 120])
def test_a_still_picture(fps: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [card(64, 64)] * max(2, round(3 * fps))
    film = Film.steady(frames, fps)
    clip = write_odd(tmp_path / "clip.mkv", film, None)
    seconds = film.times[-1] + 1e-3
    counts, _ = live(clip, capsys)
    assert len(counts) == np.ceil(seconds) and set(counts) == {(4, 0)}


def test_a_single_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = Film([card(64, 64)], [0.0])
    assert live(write_odd(tmp_path / "clip.mkv", film, None), capsys)[0] == [(4, 0)]
    track = Track(tone(16_000, seconds=2.0), 16_000)
    counts, _ = live(write_odd(tmp_path / "cover.mkv", film, track), capsys)
    assert counts == [(4, 25)] * 2


@pytest.mark.parametrize("name", SOUNDS)
def test_sound_of_any_rate(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suffix, codec, rate, channels, exact = SOUNDS[name]
    track = Track(tone(rate, channels), rate, codec)
    clip = write_odd(tmp_path / f"clip.{suffix}", None, track)
    counts, warnings = live(clip, capsys)
    assert counts[:2] == [(0, 25)] * 2 and len(counts) == 3
    assert counts[2] == (0, 12) if exact else 12 <= counts[2][1] <= 15
    assert any("no picture" in message for message in warnings)
    samples = heard_in(clip)
    assert samples.size == 40_000 if exact else 40_000 <= samples.size <= 42_000
    body = samples[8_000:24_000]
    assert np.argmax(np.abs(np.fft.rfft(body))) == 440
    assert np.sqrt(2 * np.mean(body**2)) == pytest.approx(0.5, abs=0.03)


def test_channels_are_averaged(tmp_path: Path) -> None:
    one = tone(44_100, 2)
    one[1] = 0
    heard = heard_in(write_odd(tmp_path / "clip.wav", None, Track(one, 44_100)))
    assert np.abs(heard[8_000:24_000]).max() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("rate", [22_050, 44_100, 48_000, 96_000])
def test_what_is_too_high_to_be_heard_does_not_come_back_low(rate: int, tmp_path: Path) -> None:
    track = Track(tone(rate, hertz=0.47 * rate if rate < 40_000 else 15_000.0), rate)
    heard = heard_in(write_odd(tmp_path / "clip.wav", None, track))
    assert np.abs(heard[2_000:30_000]).max() < 0.01


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_silent_track_counts_as_sound(
    level: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film = Film.steady([card(224, 224)] * 4, 2)
    track = Track(level * tone(48_000, 2, seconds=2.0), 48_000)
    counts, warnings = live(write_odd(tmp_path / "clip.mkv", film, track), capsys)
    assert counts == [(16, 25)] * 2
    assert not any("no sound" in message for message in warnings)


def test_no_track_is_said_and_gives_no_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film = Film.steady([card(224, 224)] * 4, 2)
    counts, warnings = live(write_odd(tmp_path / "clip.mkv", film, None), capsys)
    assert counts == [(16, 0)] * 2
    assert any("no sound" in message for message in warnings)
