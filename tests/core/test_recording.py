"""Recordings: written, read back, replayed, compared."""

from __future__ import annotations

import json
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
    fresh.allocate(ArenaLayout(**Recording(folder).meta["arena"]))
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
                assert np.asarray(array).dtype == np.asarray(getattr(read, name)).dtype
                np.testing.assert_array_equal(array, getattr(read, name))
        for name, array in vars(plan.delta).items():
            np.testing.assert_array_equal(array, getattr(read.delta, name))


def test_media_come_back_without_loss(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    frames = tuple(generator.integers(0, 256, (5 + i, 7, 3), dtype=np.uint8) for i in range(12))
    sound = generator.normal(size=1234).astype(np.float32)
    recorder = Recorder(tmp_path / "r")
    recorder.unit(UnitMedia(1.5, 2.25, frames, sound))
    recorder.unit(UnitMedia(2.25, 3.25))
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


def test_a_unit_that_failed_does_not_spoil_the_recording(tmp_path: Path) -> None:
    model = plain_model()
    session = Session(model, budget=256, max_tokens=6, recorder=Recorder(tmp_path / "r"))
    session.append(second(0))
    model.backend.fail_in = 0
    with pytest.raises(RuntimeError):
        session.append(second(1, 0.5))
    for index in range(1, 12):
        session.append(second(index))
    session.ask("what?")
    session.close()
    report = replay(Recording(tmp_path / "r"), backend(tmp_path / "r"), PlainFrontend())
    # Every unit and every step of the answer can be compared.
    assert report.compared == report.agreed > 12 and report.worst < 1e-6


def test_what_is_asked_back_for_a_recording_is_no_decision(tmp_path: Path) -> None:
    session = Session(plain_model(), budget=256, max_tokens=6, temperature=1.0)
    for index in range(30):
        session.append(second(index))
        if index % 9 == 4:
            session.ask("what?")
    assert session.summary()["plans"] == record(tmp_path / "r").summary()["plans"]


def test_nan_on_either_side_is_the_largest_difference(tmp_path: Path) -> None:
    record(tmp_path / "r")
    broken = backend(tmp_path / "r")
    broken.head = broken.head * np.nan
    assert replay(Recording(tmp_path / "r"), broken, PlainFrontend()).worst == np.inf


def test_a_disk_that_fills_up_ends_the_recording_and_not_the_stream(tmp_path: Path) -> None:
    recorder, warnings = Recorder(tmp_path / "r"), []

    def listen(event: dict) -> None:
        if event["event"] == "warning":
            warnings.append(event["message"])

    session = Session(plain_model(), budget=256, max_tokens=6, recorder=recorder, on_event=listen)
    session.append(second(0))
    whole = len(list(Recording(tmp_path / "r").entries()))

    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

    recorder._lines.close()
    recorder._lines = Full()
    session.append(second(1))
    session.append(second(2))
    assert len(warnings) == 1 and "No space left" in warnings[0]
    assert len(list(Recording(tmp_path / "r").entries())) == whole


@pytest.mark.parametrize("text", ["[1]", '"x"', "{", "\xff", ""])
def test_a_session_file_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    record(tmp_path / "r")
    (tmp_path / "r" / "session.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordingError, match=r"session\.json|no readable recording"):
        Recording(tmp_path / "r")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04.", b"\x93NUMPY"])
def test_damaged_media_are_told_with_their_line(tmp_path: Path, content: bytes) -> None:
    record(tmp_path / "r")
    (tmp_path / "r" / "media" / "000003.npz").write_bytes(content)
    with pytest.raises(RecordingError, match="line"):
        list(Recording(tmp_path / "r").entries())
    (tmp_path / "r" / "media" / "000003.npz").unlink()
    with pytest.raises(RecordingError, match=r"000003\.npz"):
        list(Recording(tmp_path / "r").entries())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cells", [[10**30]]),
        ("order", "x"),
        ("positions", [[1], [2]]),
        ("tokens", None),
        ("kind", "jump"),
        ("streams", -3),
    ],
)
def test_lines_that_cannot_be_are_told(tmp_path: Path, field: str, value: object) -> None:
    record(tmp_path / "r")
    file = tmp_path / "r" / "plans.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), field: value})
    file.write_text("\n".join(lines))
    with pytest.raises(RecordingError, match="line 3"):
        list(Recording(tmp_path / "r").entries())
