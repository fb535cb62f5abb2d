"""A session that one twin saved goes on on either as if it had never stopped."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.backend import StepPlan
from omni_core.checkpoints import open_checkpoint
from omni_core.errors import RecordingError
from omni_core.frontend.base import UnitMedia
from omni_core.identity import identity
from omni_core.model_config import thinker_config
from omni_core.session import Model, Session
from tests.parity.conftest import NEEDS, Twin
from tests.parity.oracle import distance
from tests.parity.test_batch import MediaFrontend

UNITS, SAVED_AT = 30, 17


def _model(backend: Any, folder: Path) -> tuple[Model, list[np.ndarray]]:
    """A model, and a list of the logits of each step's last token."""
    checkpoint = open_checkpoint(folder)
    logits: list[np.ndarray] = []
    forward = backend.forward

    def run(plan: StepPlan, embeddings: Any = None) -> Any:
        result = forward(plan, embeddings)
        logits.append(result.logits[0])
        return result

    backend.forward = run
    text = thinker_config(checkpoint.config).text
    made = Model(
        backend, MediaFrontend(), text, "tiny", identity=identity(checkpoint), weights="f32"
    )
    return made, logits


def _follow(session: Session, start: int, stop: int) -> None:
    for index in range(start, stop):
        session.append(UnitMedia(float(index), index + 1.0, audio=np.full(1, index, np.float32)))
        if index % 7 == 3:
            session.ask("what?")


def _settings(retention: str) -> dict[str, Any]:
    return {"budget": 230, "retention": retention, "max_tokens": 5, "system": "hello", "frame": 128}


@pytest.mark.parametrize("retention", ["omnipick", "h2o"])
def test_plans_and_logits_go_on_as_if_uninterrupted(
    twin: Twin, tiny_of: Any, tmp_path: Path, retention: str
) -> None:
    tiny = tiny_of("6-2-32")
    model, whole = _model(twin.load(tiny.folder), tiny.folder)
    one = Session(model, **_settings(retention))
    _follow(one, 0, UNITS)
    model, first = _model(twin.load(tiny.folder), tiny.folder)
    two = Session(model, **_settings(retention))
    _follow(two, 0, SAVED_AT)
    two.save(tmp_path / "saved")
    model, second = _model(twin.load(tiny.folder), tiny.folder)
    three = Session.resume(model, tmp_path / "saved")
    _follow(three, SAVED_AT, UNITS)
    assert one.summary()["evicted"] > 200
    drop = ("memory",)
    for name in one.summary().keys() - drop:
        assert one.summary()[name] == three.summary()[name]
    for expected, found in zip(whole, first + second, strict=True):
        np.testing.assert_array_equal(expected, found)


def test_the_other_twin_goes_on(twin: Twin, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")
    others = [name for name in NEEDS if name != twin.name]
    other = Twin(others[0], "cpu")
    if importlib.util.find_spec(NEEDS[other.name]) is None:
        pytest.skip("MLX is not installed" if other.name == "mlx" else "torch is not installed")
    model, whole = _model(twin.load(tiny.folder), tiny.folder)
    one = Session(model, **_settings("omnipick"))
    _follow(one, 0, UNITS)
    model, first = _model(twin.load(tiny.folder), tiny.folder)
    two = Session(model, **_settings("omnipick"))
    _follow(two, 0, SAVED_AT)
    two.save(tmp_path / "saved")
    model, second = _model(other.load(tiny.folder), tiny.folder)
    three = Session.resume(model, tmp_path / "saved")
    _follow(three, SAVED_AT, UNITS)
    assert one.summary()["plans"] == three.summary()["plans"]
    compared = 0
    for expected, found in zip(whole, first + second, strict=True):
        if expected.size:
            assert distance(found, expected) < 1e-4
            compared += 1
    assert compared > 10


def test_bfloat16_comes_back_to_the_bit(twin: Twin, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")

    def load() -> tuple[Model, list[np.ndarray]]:
        twin_module = importlib.import_module(f"omni_{twin.name}")
        checkpoint = open_checkpoint(tiny.folder)
        return _model(twin_module.load(checkpoint, device=twin.device, weights="bf16"), tiny.folder)

    model, whole = load()
    one = Session(model, **_settings("omnipick"))
    _follow(one, 0, UNITS)
    model, first = load()
    two = Session(model, **_settings("omnipick"))
    _follow(two, 0, SAVED_AT)
    two.save(tmp_path / "saved")
    model, second = load()
    three = Session.resume(model, tmp_path / "saved")
    _follow(three, SAVED_AT, UNITS)
    assert one.summary()["plans"] == three.summary()["plans"]
    for expected, found in zip(whole, first + second, strict=True):
        np.testing.assert_array_equal(expected, found)
    exact, _ = _model(twin.load(tiny.folder), tiny.folder)
    with pytest.raises(RecordingError, match="2 bytes a number"):
        Session.resume(exact, tmp_path / "saved")


def test_another_model_is_refused(twin: Twin, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")
    model, _ = _model(twin.load(tiny.folder), tiny.folder)
    session = Session(model, **_settings("omnipick"))
    _follow(session, 0, 3)
    session.save(tmp_path / "saved")
    other = tiny_of("8-2-16").folder
    stranger, _ = _model(twin.load(other), other)
    with pytest.raises(RecordingError, match="another one"):
        Session.resume(stranger, tmp_path / "saved")
