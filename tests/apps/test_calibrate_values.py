"""``omnilive calibrate values`` on either backend, and the file that ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clips import write_clip

from omni_core.errors import OmniError
from omni_core.quantization import tables_file
from omni_core.quantization.hadamard import hadamard
from omni_core.quantization.tables_file import read_about, read_tables
from omni_core.units import Modality
from omnilive.cli import main
from omnilive.models import EMBEDDED_FOLDER, prepare

OWN = EMBEDDED_FOLDER / tables_file.OWN


@pytest.fixture(params=["mlx", "cuda"])
def backend(request: pytest.FixtureRequest) -> list[str]:
    name = str(request.param)
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    return ["--backend", name, "--device", "cpu"]


def calibrate(*words: str | Path) -> int:
    return main(["calibrate", "values", *map(str, words)])


def test_two_clips(tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    long = write_clip(tmp_path / "long.mp4", seconds=7.0)
    short = write_clip(tmp_path / "short.mp4", seconds=6.0, hertz=900)
    out = tmp_path / "values.safetensors"
    assert calibrate("--source", long, "--source", short, *backend, "--out", out) == 0
    shown, err = capsys.readouterr()
    about = read_about(out)
    clips = [{"name": "long.mp4", "seconds": 7.0, "units": 7}]
    assert about["clips"] == [*clips, {"name": "short.mp4", "seconds": 6.0, "units": 6}]
    assert about["model"] == "embedded" and about["trained"] is False and "untrained" in err
    assert about["modalities"]["audio"]["tokens"] == 25 * 13
    assert about["backend"] == backend[1] and "numpy" in about["versions"]
    assert str(tmp_path) not in out.read_bytes()[:4000].decode("latin-1")
    prepared = prepare(backend=backend[1])
    text = prepared.config.text
    tables = read_tables(out, text, "embedded", about["identity"])
    assert len(tables) == text.layers
    assert all((own.feedback is not None) == ("cuda" in backend) for own in tables)
    assert ("feedback is left out" in err) == ("mlx" in backend)
    for name, one in about["modalities"].items():
        plain = hadamard(text.head_dim)
        own = not np.allclose(tables[0].rotations[:, Modality[name.upper()]], plain)
        assert own == (one["rotation"] == "own")
        assert f"{name}: " in shown


def test_backends_fit_the_same(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    pytest.importorskip("torch")
    clip = write_clip(tmp_path / "clip.mp4", seconds=6.0)
    found = []
    for name in ("mlx", "cuda"):
        out = tmp_path / f"{name}.safetensors"
        assert calibrate("--source", clip, "--backend", name, "--device", "cpu", "--out", out) == 0
        found.append(read_about(out)["modalities"])
    assert found[0].keys() == found[1].keys()
    for kind, one in found[0].items():
        other = found[1][kind]
        assert one["tokens"] == other["tokens"]
        assert one["hadamard_error"] == pytest.approx(other["hadamard_error"], rel=0.01)


def test_a_modality_that_never_occurs_keeps_hadamard_and_is_told(
    tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "sound.m4a", seconds=6.0, fps=None)
    out = tmp_path / "values.safetensors"
    assert calibrate("--source", clip, *backend, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "vision: never occurred, so its values get a Hadamard rotation" in shown
    about = read_about(out)
    assert about["modalities"]["vision"] == {"tokens": 0, "rotation": "hadamard"}
    text = prepare(backend=backend[1]).config.text
    for own in read_tables(out, text, "embedded", about["identity"]):
        assert (own.rotations[:, Modality.VISION] == hadamard(text.head_dim)).all()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--out", "{}/no/v.safetensors"], 1, "there is no folder"),
        (["--out", "{}"], 1, "is a folder"),
        (["--out", "{}/v.safetensors", "--source", "{}/none.mp4"], 1, "no such file"),
        (["--out", "{}/v.safetensors", "--budget", "64"], 1, "too small"),
        (["--out", "{}/v.safetensors", "--model", "{}/none"], 1, "no such folder"),
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


@pytest.mark.shipped
def test_the_embedded_models_own_file_fits_it(backend: list[str]) -> None:
    assert OWN.stat().st_size < 2_000_000
    prepared = prepare(backend=backend[1])
    about, text = read_about(OWN), prepared.config.text
    identity = prepared.described(4).identity
    tables = read_tables(OWN, text, "embedded", identity)
    assert len(tables) == text.layers
    for own in tables:
        assert own.feedback is not None and not np.tril(own.feedback).any()
    for one in about["modalities"].values():
        assert one["rotation"] == "own"
        assert one["error"] < 0.85 * one["hadamard_error"]


@pytest.mark.shipped
def test_another_model_does_not_take_it() -> None:
    prepared = prepare()
    with pytest.raises(OmniError, match="measured on the model embedded"):
        read_tables(OWN, prepared.config.text, "another", "0" * 32)
