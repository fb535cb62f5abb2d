"""``omnilive calibrate layers`` in PyTorch, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip

from omni_core.errors import OmniError
from omni_core.layer_budgets import Blend, allocate, importance, read_sensitivity
from omnilive.calibrate_layers import LONGEST, run
from omnilive.cli import main
from omnilive.models import prepare
from omnilive.options import CalibrateLayersOptions, ModelOptions, UsageError

pytest.importorskip("torch")


def calibrate(out: Path, *sources: Path, model: dict[str, str] | None = None, **more: Any) -> None:
    options = ModelOptions(**({"device": "cpu"} | (model or {})))
    run(CalibrateLayersOptions(options, out, sources, **more))


def test_two_clips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = write_clip(tmp_path / "long.mp4", seconds=7.0)
    short = write_clip(tmp_path / "sound.m4a", seconds=2.5, fps=None)
    out = tmp_path / "layers.json"
    calibrate(out, long, short, units=3)
    shown, err = capsys.readouterr()
    found = json.loads(out.read_text())
    clips = [{"name": "long.mp4", "seconds": 7.0, "units": 7}]
    about = found["about"]
    assert about["clips"] == [*clips, {"name": "sound.m4a", "seconds": 2.5, "units": 3}]
    assert about["model"] == "embedded" and about["trained"] is False and "untrained" in err
    assert about["weights"] == "f32" and about["units"] == 3 and "torch" in about["versions"]
    assert found["samples"] == 4 and "7 units, 3 stretches" in err
    assert str(tmp_path) not in out.read_text()
    prepared = prepare(backend="cuda")
    layers, identity = prepared.config.text.layers, about["identity"]
    for name in ("sensitivity", "spread", "keys", "values"):
        assert len(found[name]) == layers and min(found[name]) > 0
    assert shown.count("\n") == layers and "layer 0: " in shown
    sensitivity = read_sensitivity(out, layers, "embedded", identity)
    assert sensitivity.tolist() == found["sensitivity"]
    assert identity == prepared.described(4).identity
    cells = allocate(importance(sensitivity, np.zeros(layers), Blend()), 1000, 100, 2000)
    assert cells.sum() == 1000 and np.argmax(cells) == np.argmax(sensitivity)


def test_each_stretch_is_a_stream_of_its_own(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=4.0)
    found = []
    for name, units in (("one", 4), ("two", 2), ("all", 9)):
        calibrate(tmp_path / name, clip, units=units)
        found.append(json.loads((tmp_path / name).read_text()))
    assert [each["samples"] for each in found] == [1, 2, 1]
    assert found[0]["sensitivity"] == found[2]["sensitivity"] != found[1]["sensitivity"]
    assert found[0]["spread"] == [0] * len(found[0]["spread"])


def test_the_loss_is_that_of_the_models_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omni_cuda.sensitivity import DenseRun

    taken, norms = [], DenseRun.gradient_norms

    def gradient_norms(self: Any, parts: Any, cached: int, following: list[int]) -> Any:
        taken.append((parts, cached, following))
        return norms(self, parts, cached, following)

    monkeypatch.setattr(DenseRun, "gradient_norms", gradient_norms)
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    calibrate(tmp_path / "out", clip, question="And now?", system="Be short.")
    ((parts, cached, following),) = taken
    model = prepare(backend="cuda", device="cpu").load()
    stop = model.frontend.stop_tokens
    assert 1 <= len(following) <= LONGEST
    assert len(following) == LONGEST or following[-1] in stop
    assert not stop & set(following[:-1])
    # The answer is read but for its last token, right behind the question.
    read = [int(token) for block, _ in parts for token in block.tokens]
    positions = np.concatenate([block.positions for block, _ in parts], axis=1)
    drawn = len(following) - 1
    assert read[len(read) - drawn :] == following[:-1]
    asked = model.frontend.text(read[cached : len(read) - drawn])
    assert "And now?" in asked
    assert "Be short." in model.frontend.text([token for token in read[:cached] if token >= 0])
    assert (np.diff(positions[0, cached:]) >= 0).all()
    dense = DenseRun(model.backend)
    for end in range(len(following)):
        kept = parts[: len(parts) - drawn + end]
        assert int(dense.next_logits(kept).argmax()) == following[end]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    words = ["--source", clip, "--device", "cpu", "--units", "1", "--question", "And now?"]
    found = []
    for name in ("words", "options"):
        out = tmp_path / name
        if name == "words":
            assert main(["calibrate", "layers", *map(str, words), "--out", str(out)]) == 0
        else:
            calibrate(out, clip, units=1, question="And now?")
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1]
    capsys.readouterr()
    assert main(["calibrate", "layers", "--backend", "mlx", "--out", str(tmp_path / "no")]) == 2
    shown, err = capsys.readouterr()
    assert shown == "" and err.count("\n") == 1 and "in float32" in err


@pytest.mark.parametrize("model", [{"backend": "mlx"}, {"weights": "bf16"}, {"weights": "8"}])
def test_gradients_are_taken_by_pytorch_in_float32(tmp_path: Path, model: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="leave --backend and --weights out") as told:
        calibrate(tmp_path / "out", model=model)
    assert "\n" not in str(told.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "source", "model", "says"),
    [
        ("no/l.json", None, {}, "there is no folder"),
        ("", None, {}, "is a folder"),
        ("l.json", "none.mp4", {}, "no such file"),
        ("l.json", None, {"model": "none"}, "no such folder"),
        ("l.json", None, {"device": "cuda:77"}, "is not available"),
        ("clip.mp4", "clip.mp4", {}, "is in use by this command"),
    ],
)
def test_what_cannot_be_done_is_told_first(
    tmp_path: Path,
    out: str,
    source: str | None,
    model: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)
    if "model" in model:
        model = {"model": str(tmp_path / model["model"])}
    sources = [] if source is None else [tmp_path / source]
    with pytest.raises(OmniError, match=says) as told:
        calibrate(tmp_path / out, *sources, model=model)
    assert "\n" not in str(told.value) and list(tmp_path.iterdir()) == []


def test_damaged_weights_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_cuda.sensitivity import DenseRun

    layers = prepare(backend="cuda").config.text.layers
    broken = np.full((2, layers), np.nan)
    monkeypatch.setattr(DenseRun, "gradient_norms", lambda *_: broken)
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    with pytest.raises(OmniError, match="the gradient at layer 0 is not finite"):
        calibrate(tmp_path / "out", clip)
    assert not (tmp_path / "out").exists()
