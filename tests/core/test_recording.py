"""Recordings: written, read back, replayed, compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy_backend import NumpyBackend, PlainFrontend, plain_model, second

from omni_core.backend import ArenaLayout
from omni_core.errors import RecordingError
from omni_core.frontend.base import UnitMedia
from omni_core.recording import Recorder, Recording
from omni_core.replay import first_difference, replay
from omni_core.session import Session


def record(folder: Path, seed: int = 0) -> Session:
    session = Session(
        plain_model(),
        budget=256,
        max_tokens=6,
        temperature=1.0,
        seed=seed,
        recorder=Recorder(folder),
    )
    for index in range(30):
        session.append(second(index))
        if index % 9 == 4:
            session.ask("what?")
    session.close()
    return session


def backend(folder: Path, seed: int = 0) -> NumpyBackend:
    fresh = NumpyBackend(seed)
    fresh.allocate(ArenaLayout(**Recording(folder).meta["layout"]))
    return fresh


def test_a_replay_gives_the_recorded_logits(tmp_path: Path) -> None:
    record(tmp_path / "r")
    report = replay(Recording(tmp_path / "r"), backend(tmp_path / "r"), PlainFrontend())
    assert report.compared == report.agreed >= 15
    assert report.worst < 1e-6 and report.steps > 50 and report.moves > 0
    other = replay(Recording(tmp_path / "r"), backend(tmp_path / "r", seed=1), PlainFrontend())
    assert other.worst > 0.1 and other.agreed < other.compared


def test_equal_sessions_have_equal_plans_and_digests(tmp_path: Path) -> None:
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert one.summary()["plans"] == two.summary()["plans"]
    assert first_difference(Recording(tmp_path / "one"), Recording(tmp_path / "two")) is None
    three = record(tmp_path / "three", seed=5)
    assert three.summary()["plans"] != one.summary()["plans"]
    difference = first_difference(Recording(tmp_path / "one"), Recording(tmp_path / "three"))
    assert difference is not None and "tokens" in difference


def test_plans_come_back_exactly(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r")
    plans = []
    keep = recorder.plan

    def spy(plan, logits=None):
        plans.append(plan)
        keep(plan, logits)

    recorder.plan = spy
    session = Session(plain_model(), budget=256, max_tokens=6, recorder=recorder)
    for index in range(20):
        session.append(second(index))
    session.close()
    for plan, read in zip(plans, Recording(tmp_path / "r").plans(), strict=True):
        assert type(plan) is type(read)
        for name, array in vars(plan).items():
            if name != "delta":
                assert array.dtype == getattr(read, name).dtype
                np.testing.assert_array_equal(array, getattr(read, name))
        for name, array in vars(plan.delta).items():
            np.testing.assert_array_equal(array, getattr(read.delta, name))


def test_media_come_back_without_loss(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    frames = tuple(generator.integers(0, 256, (5 + i, 7, 3), dtype=np.uint8) for i in range(12))
    sound = generator.normal(size=1234).astype(np.float32)
    recorder = Recorder(tmp_path / "r")
    recorder.unit(0, UnitMedia(1.5, 2.25, frames, sound))
    recorder.unit(1, UnitMedia(2.25, 3.25))
    recorder.begin({})
    recorder.close()
    first, last = (entry.media for entry in Recording(tmp_path / "r").entries())
    assert first is not None and last is not None
    assert (first.start, first.stop) == (1.5, 2.25)
    assert all((a == b).all() for a, b in zip(first.frames, frames, strict=True))
    assert (first.audio == sound).all()
    assert last.frames == () and last.audio is None


def test_a_recording_cut_off_by_a_crash_is_readable_up_to_there(tmp_path: Path) -> None:
    record(tmp_path / "r")
    file = tmp_path / "r" / "plans.jsonl"
    whole = len(list(Recording(tmp_path / "r").entries()))
    file.write_bytes(file.read_bytes()[:-20])
    assert len(list(Recording(tmp_path / "r").entries())) == whole - 1


def test_damage_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no readable recording"):
        Recording(tmp_path / "nothing")
    record(tmp_path / "r")
    with pytest.raises(RecordingError, match="not empty"):
        Recorder(tmp_path / "r")
    lines = (tmp_path / "r" / "plans.jsonl").read_text().splitlines()
    lines[2] = lines[2][:30]
    (tmp_path / "r" / "plans.jsonl").write_text("\n".join(lines))
    with pytest.raises(RecordingError, match="line 3"):
        list(Recording(tmp_path / "r").entries())
    (tmp_path / "r" / "session.json").write_text('{"format": 99}')
    with pytest.raises(RecordingError, match="99"):
        Recording(tmp_path / "r")
