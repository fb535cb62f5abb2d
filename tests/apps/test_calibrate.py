"""``omnilive calibrate retention`` on either backend, its file and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from clips import write_clip

from omni_core.mass_profile import QueryUnit
from omni_core.retention import OmniPick
from omnilive.cli import main
from omnilive.heatmap import draw


@pytest.fixture(params=["mlx", "cuda"])
def backend(request: pytest.FixtureRequest) -> list[str]:
    name = str(request.param)
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    return ["--backend", name, "--device", "cpu"]


def calibrate(*words: str | Path) -> int:
    return main(["calibrate", "retention", *map(str, words)])


def test_two_clips(tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    long = write_clip(tmp_path / "long.mp4", seconds=7.0)
    short = write_clip(tmp_path / "short.mp4", seconds=6.0, hertz=900)
    out, plot = tmp_path / "sinks.json", tmp_path / "map.png"
    words = ["--source", long, "--source", short, *backend, "--out", out, "--plot", plot]
    assert calibrate(*words) == 0
    shown, err = capsys.readouterr()
    found = json.loads(out.read_text(encoding="utf-8"))
    clips = [{"name": "long.mp4", "seconds": 7.0, "units": 7}]
    clips += [{"name": "short.mp4", "seconds": 6.0, "units": 6}]
    about = found["about"]
    assert about["clips"] == clips and about["model"] == "embedded" and about["recent"] == 4
    assert about["trained"] is False and "untrained" in err
    assert "7 units, 3 of them" in err and "6 units, 2 of them" in err
    assert str(tmp_path) not in out.read_text(encoding="utf-8")
    assert len(found["mass"]["audio"]) == 25
    assert sum(map(sum, found["mass"].values())) + sum(found["delimiters"].values()) == (
        pytest.approx(1, abs=1e-3)
    )
    rule = OmniPick.from_calibration(found)
    assert rule.vision == found["sinks"]["vision"] <= len(found["mass"]["vision"])
    assert f"audio: the first {rule.audio} of up to 25 tokens" in shown
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(["live", "--source", str(short), "--fast", *backend, "--sinks", str(out)]) == 0
    assert "measured on" not in capsys.readouterr().err


def test_backends_measure_the_same(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    pytest.importorskip("torch")
    clip = write_clip(tmp_path / "clip.mp4", seconds=6.0)
    curves: list[Any] = []
    for name in ("mlx", "cuda"):
        out = tmp_path / f"{name}.json"
        assert calibrate("--source", clip, "--backend", name, "--device", "cpu", "--out", out) == 0
        curves.append(json.loads(out.read_text())["mass"])
    assert curves[0].keys() == curves[1].keys()
    for sense, curve in curves[0].items():
        np.testing.assert_allclose(curve, curves[1][sense], rtol=2e-3)


def test_all_of_the_mass_takes_all_tokens(tmp_path: Path, backend: list[str]) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=4.0)
    out = tmp_path / "sinks.json"
    words = ["--source", clip, *backend, "--cover", "1", "--recent", "1", "--out", out]
    assert calibrate(*words) == 0
    found = json.loads(out.read_text())
    assert found["sinks"] == {name: len(curve) for name, curve in found["mass"].items()}


def test_clips_that_are_too_short(
    tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    out = tmp_path / "sinks.json"
    assert calibrate("--source", clip, *backend, "--out", out) == 1
    assert "give longer clips, or a smaller --recent" in capsys.readouterr().err
    assert not out.exists()


def test_a_full_budget_ends_a_clip(
    tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=12.0)
    out = tmp_path / "sinks.json"
    assert calibrate("--source", clip, *backend, "--budget", "360", "--out", out) == 0
    assert "the budget of 360 cells is full after" in capsys.readouterr().err
    assert 4 < json.loads(out.read_text())["about"]["clips"][0]["units"] < 12


def test_sound_alone(tmp_path: Path, backend: list[str]) -> None:
    clip = write_clip(tmp_path / "sound.m4a", seconds=6.0, fps=None)
    out = tmp_path / "sinks.json"
    plot = tmp_path / "map.PNG"
    assert calibrate("--source", clip, *backend, "--out", out, "--plot", plot) == 0
    found = json.loads(out.read_text())
    assert set(found["sinks"]) == set(found["mass"]) == {"audio"}
    assert OmniPick.from_calibration(found).vision == OmniPick().vision


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--out", "{}/no/s.json"], 1, "there is no folder"),
        (["--out", "{}"], 1, "is a folder"),
        (["--out", "{}/s.json", "--plot", "{}/map.jpg"], 2, "ends in .png"),
        (["--out", "{}/s.json", "--plot", "{}/no/map.png"], 1, "there is no folder"),
        (["--out", "{}/s.json", "--source", "{}/none.mp4"], 1, "no such file"),
        (["--out", "{}/s.json", "--budget", "64"], 1, "too small"),
        (["--out", "{}/s.json", "--model", "{}/none"], 1, "no such folder"),
    ],
)
def test_what_cannot_be_done_is_told_first(
    tmp_path: Path,
    words: list[str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)
    assert calibrate(*(word.format(tmp_path) for word in words)) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err
    assert list(tmp_path.iterdir()) == []


def unit(number: int, vision: int, audio: int, seed: int) -> QueryUnit:
    mass = np.zeros((6, max(vision, audio, 1)))
    keys = np.zeros_like(mass)
    generator = np.random.default_rng(seed)
    mass[1, :vision], keys[1, :vision] = generator.exponential(size=vision), 3
    mass[2, :audio], keys[2, :audio] = generator.exponential(size=audio), 3
    mass[4:6, 0], keys[4:6, 0] = 2.0, 6
    return QueryUnit(number, mass / mass.sum(), keys)


def picture(data: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image


@pytest.mark.parametrize(
    ("lengths", "vision", "audio"),
    [([1], 1, 1), ([3, 5], 64, 10), ([2], 2300, 25), ([1200, 40], 30, 25), ([4], 0, 7)],
)
def test_maps_of_any_size(lengths: list[int], vision: int, audio: int) -> None:
    streams = [[unit(4 + n, vision, audio, n) for n in range(length)] for length in lengths]
    image = picture(draw(streams, {"vision": 3, "audio": 2}, "some/model"))
    assert 150 < image.shape[0] < 800 and 300 < image.shape[1] < 1800
    colours = np.unique(image.reshape(-1, 3), axis=0)
    assert len(colours) > 3


def test_brighter_is_more() -> None:
    mass, keys = np.zeros((6, 40)), np.zeros((6, 40))
    mass[1], keys[1] = 0.01, 5
    mass[1, :4] = 0.5
    streams = [[QueryUnit(n, mass / mass.sum(), keys) for n in range(4, 10)]]
    image = picture(draw(streams, {}, "some/model")).astype(int)
    middle = image[100, 84 : 84 + 40 * 14 : 14]
    # From dark violet to yellow.
    assert (middle[:4, 1] > 200).all() and (middle[5:, 1] < 60).all()
