"""Saving, resuming, tracing and replaying from the command line."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip

from omni_core import Recording, Session, saving
from omni_core.errors import MediaError
from omnilive import pace
from omnilive.cli import main

Events = list[dict[str, Any]]
CPU = ("--device", "cpu", "--max-tokens", "5")


@pytest.fixture(params=["mlx", "cuda"])
def backend(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    return name


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", seconds=4.0)


def live(capsys: pytest.CaptureFixture[str], backend: str, clip: Path, *words: str) -> Events:
    where = ("--backend", backend, "--device", "cpu")
    code = main(["live", "--source", str(clip), "--fast", "--jsonl", *where, *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """The one line of a run that was refused before it began."""
    assert main(["live", "--fast", "--device", "cpu", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("omnilive: ")
    return err


def without_memory(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name not in ("memory", "backend")}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


SETTINGS = ("--budget", "440", "--temperature", "0.8", "--seed", "3", "--max-tokens", "5")


def test_two_runs_are_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, backend: str
) -> None:
    early, late = ("--ask", "3: what is it?"), ("--ask", "9: and now?")
    whole = live(capsys, backend, clip, *SETTINGS, *early, *late, "--loop", "4")
    folder = str(tmp_path / "s")
    first = live(capsys, backend, clip, *SETTINGS, *early, "--loop", "2", "--save", folder)
    other = "cuda" if backend == "mlx" else "mlx"
    pytest.importorskip("torch" if other == "cuda" else "mlx.core")
    for name in (backend, other):
        rest = live(capsys, name, clip, *late, "--loop", "2", "--resume", folder)
        kinds = ("unit", "answer", "evict")
        times = [(event["event"], event["t"]) for event in whole if event["event"] in kinds]
        found = [(event["event"], event["t"]) for event in first + rest if event["event"] in kinds]
        assert found == times and [t for _, t in times][-1] == 16.0
        assert without_memory(rest[-1]) == without_memory(whole[-1])
    assert whole[-1]["evicted"] > 0


def test_a_session_goes_on_and_on_in_one_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, backend: str
) -> None:
    folder = str(tmp_path / "s")
    live(capsys, backend, clip, "--save", folder)
    for turn in (2, 3):
        events = live(capsys, backend, clip, "--resume", folder, "--save", folder)
        assert events[-1]["t"] == 4.0 * turn and events[-1]["units"] == 4 * turn
    assert len(list((tmp_path / "s").iterdir())) == 2


def test_a_duration_counts_from_where_it_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, backend: str
) -> None:
    folder = str(tmp_path / "s")
    live(capsys, backend, clip, "--save", folder)
    words = ("--duration", "2.5", "--ask", "4: now?", "--ask", "6.5: then?")
    events = live(capsys, backend, clip, "--resume", folder, *words)
    assert [e["t"] for e in events if e["event"] == "unit"] == [5.0, 6.0, 6.5]
    assert [e["t"] for e in events if e["event"] == "answer"] == [4.0, 6.5]


def test_the_saved_model_is_found_again(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    backend: str,
    untrained: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, folder = tmp_path / "model", str(tmp_path / "s")
    shutil.copytree(untrained, model)
    monkeypatch.chdir(tmp_path)
    live(capsys, backend, clip, "--model", "model", "--weights", "bf16", "--save", folder)
    monkeypatch.chdir(tmp_path.parent)
    assert live(capsys, backend, clip, "--resume", folder)[-1]["t"] == 8.0
    moved = model.rename(tmp_path / "elsewhere")
    line = refused(capsys, 1, "--resume", folder)
    assert "no such folder" in line
    assert live(capsys, backend, clip, "--resume", folder, "--model", str(moved))[-1]["t"] == 8.0
    line = refused(capsys, 1, "--resume", folder, "--model", str(moved), "--weights", "f32")
    assert "weights in bf16" in line
    weights = moved / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    weights.write_bytes(data)
    before = contents(tmp_path / "s")
    words = ("--resume", folder, "--save", folder, "--model", str(moved))
    assert "another one or has other weights" in refused(capsys, 1, *words)
    assert contents(tmp_path / "s") == before


@pytest.mark.parametrize(
    "words",
    [
        ("--retention", "fifo"),
        ("--budget", "600"),
        ("--layout", "page"),
        ("--sinks", "nowhere.json"),
        ("--system", "Be brief."),
        ("--max-tokens", "64"),
        ("--temperature", "0"),
        ("--seed", "0"),
    ],
)
def test_settings_are_those_that_were_saved(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, str]
) -> None:
    line = refused(capsys, 2, "--resume", str(tmp_path / "nowhere"), *words)
    assert line.startswith(f"omnilive: {words[0]} cannot be given with --resume")


def test_what_cannot_be_resumed_or_saved_is_told_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlx.core")
    folder = tmp_path / "s"
    live(capsys, "mlx", clip, "--save", str(folder))
    monkeypatch.setattr("omnilive.models.Prepared.load", None)
    before = contents(folder)
    s, source = str(folder), ("--source", str(clip))
    assert "no saved session there" in refused(capsys, 1, "--resume", str(tmp_path / "nowhere"))
    assert "holds a saved session" in refused(capsys, 1, "--save", s)
    assert "lies before 4 s" in refused(capsys, 2, *source, "--resume", s, "--ask", "3: what?")
    assert "past the end" in refused(capsys, 2, *source, "--resume", s, "--ask", "9: what?")
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    assert "letter.txt" in refused(capsys, 1, "--save", str(other))
    assert "same folder" in refused(
        capsys, 2, "--save", str(tmp_path / "x"), "--record", str(tmp_path / "x")
    )
    assert "is a folder" in refused(capsys, 1, "--trace", str(other))
    (cache,) = folder.glob("cache-*")
    data = bytearray(cache.read_bytes())
    data[200] ^= 1
    cache.write_bytes(data)
    assert "damaged" in refused(capsys, 1, "--resume", s, "--save", s)
    cache.write_bytes(before[cache.name])
    assert contents(folder) == before


def test_a_ctrl_c_saves(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mlx.core")
    append = Session.append

    def press(self: Session, media: Any) -> None:
        append(self, media)
        if media.stop == 2.0:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "append", press)
        events = live(capsys, "mlx", clip, "--save", str(tmp_path / "s"))
    assert events[-1]["t"] == 2.0
    events = live(capsys, "mlx", clip, "--resume", str(tmp_path / "s"))
    assert events[-1]["t"] == 6.0 and events[-1]["units"] == 6


def at(phase: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Has something done within a save, ``before`` the cache is written, once it is ``placed``, or
    once the state that names it is."""
    write, replace = saving.write_tensors, Path.replace
    moments = {"cache.safetensors.partial": "placed", "saved.json.partial": "named"}

    def written(*words: Any) -> None:
        if phase == "before":
            act()
        write(*words)

    def replaced(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if moments.get(self.name) == phase:
            act()
        return done

    monkeypatch.setattr(saving, "write_tensors", written)
    monkeypatch.setattr(Path, "replace", replaced)


@pytest.mark.parametrize("phase", ["before", "placed", "named"])
@pytest.mark.parametrize(
    ("numbers", "code"),
    [((signal.SIGTERM,), 143), ((signal.SIGHUP,), 129), ((signal.SIGINT,) * 2, 130)],
)
def test_a_signal_within_a_save_comes_after_it(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    numbers: tuple[int, ...],
    code: int,
) -> None:
    pytest.importorskip("mlx.core")
    folder = str(tmp_path / "s")
    live(capsys, "mlx", clip, "--save", folder)

    def signals() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    words = [
        "live",
        "--source",
        str(clip),
        "--fast",
        "--backend",
        "mlx",
        *CPU[:2],
        "--resume",
        folder,
    ]
    with monkeypatch.context() as patch:
        at(phase, patch, signals)
        assert main([*words, "--save", folder]) == code
    err = capsys.readouterr().err
    assert "saved at 8.00 s" in err and "not saved" not in err
    assert saving.open_saved(folder).time == 8.0 and len(contents(Path(folder))) == 2
    assert live(capsys, "mlx", clip, "--resume", folder)[-1]["t"] == 12.0


KILLED = """
import os, pathlib, runpy, signal, sys
from omni_core import saving
phase, *words = sys.argv[1:]
write, replace = saving.write_tensors, pathlib.Path.replace
def end():
    os.kill(os.getpid(), signal.SIGKILL)
def written(stream, *rest):
    write(stream, *rest)
    stream.seek(0)
    stream.truncate(os.fstat(stream.fileno()).st_size // 2)
    end()
def replaced(self, target):
    replace(self, target)
    if self.name.startswith(phase):
        end()
if phase == "within":
    saving.write_tensors = written
pathlib.Path.replace = replaced
sys.argv = ["omnilive", *words]
runpy.run_module("omnilive", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("phase", "time"), [("within", 4.0), ("cache", 4.0), ("saved", 8.0)])
def test_a_save_that_is_killed_leaves_the_old_session_or_the_new_one(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    untrained: Path,
    phase: str,
    time: float,
) -> None:
    pytest.importorskip("mlx.core")
    folder, new = tmp_path / "s", tmp_path / "new"
    model = ("--model", str(untrained))
    live(capsys, "mlx", clip, *model, "--save", str(folder))
    for target in (folder, new):
        words = [
            "--source",
            str(clip),
            "--fast",
            "--backend",
            "mlx",
            *CPU[:2],
            "--save",
            str(target),
        ]
        words += ["--resume", str(folder)] if target == folder else model
        done = subprocess.run(
            [sys.executable, "-c", KILLED, phase, "live", *words],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
    assert saving.open_saved(folder).time == time
    assert live(capsys, "mlx", clip, "--resume", str(folder))[-1]["t"] == time + 4
    if time == 8.0:
        assert saving.open_saved(new).time == 4.0
    else:
        assert "no saved session there" in refused(capsys, 1, "--resume", str(new))
        # What is left of it is in nobody's way.
        live(capsys, "mlx", clip, *model, "--save", str(new))
        assert len(contents(new)) == 2


def test_a_second_ctrl_c_says_that_nothing_was_saved(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mlx.core")

    def press(self: Session, media: Any) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Session, "append", press)
    folder = tmp_path / "s"
    words = ["live", "--source", str(clip), "--fast", "--backend", "mlx", *CPU]
    assert main([*words, "--save", str(folder)]) == 130
    told = f"warning: the session was not saved: {folder}: the second Ctrl-C ended it at once"
    assert told in capsys.readouterr().err and not folder.exists()


def test_media_and_a_save_that_fail_are_both_told(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mlx.core")

    def failing(self: Session, media: Any) -> None:
        raise MediaError("the camera has gone")

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Session, "append", failing)
    at("before", monkeypatch, full)
    words = ["live", "--source", str(clip), "--fast", "--backend", "mlx", *CPU]
    assert main([*words, "--save", str(tmp_path / "s")]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[-1] == "omnilive: the camera has gone"
    assert "was not saved" in err[-2] and "No space left" in err[-2]


def test_media_that_fail_do_not_cost_the_session(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mlx.core")
    from omnilive.player import Player

    units = Player.units

    def failing(self: Player) -> Any:
        for unit in units(self):
            yield unit
            if unit.stop == 2.0:
                raise MediaError("the camera has gone")

    monkeypatch.setattr(Player, "units", failing)
    folder = str(tmp_path / "s")
    words = ["live", "--source", str(clip), "--fast", "--backend", "mlx", *CPU, "--save", folder]
    assert main(words) == 1
    assert "the camera has gone" in capsys.readouterr().err
    monkeypatch.undo()
    assert saving.open_saved(folder).time == 2.0


def test_a_trace_of_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, backend: str
) -> None:
    file = tmp_path / "t.json"
    words = ("--trace", str(file), "--ask", "2: what is it?", *SETTINGS, "--loop", "4")
    summary = live(capsys, backend, clip, *words)[-1]
    events = json.loads(file.read_text())
    found = {event["name"] for event in events if event["ph"] == "X"}
    assert {"capture", "prepare", "encode", "forward", "retain", "decode"} <= found
    units = [event["args"] for event in events if event["name"] == "encode"]
    assert len(units) == summary["units"] == 16 and {"unit", "tokens"} <= set(units[0])
    capture = [event["args"] for event in events if event["name"] == "capture"]
    assert [part["stop"] for part in capture if part] == [float(n + 1) for n in range(16)]


def test_events_are_recorded_as_they_are_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, backend: str
) -> None:
    words = ("--record", str(tmp_path / "r"), "--ask", "2: what is it?", "--max-tokens", "5")
    shown = live(capsys, backend, clip, *words)
    assert {event["event"] for event in shown} >= {"unit", "answer", "warning", "summary"}
    assert list(Recording(tmp_path / "r").events()) == shown
    file = tmp_path / "r" / "events.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert list(Recording(tmp_path / "r").events()) == shown[:-1]


def test_a_resumed_recording_is_replayed_on_both(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, backend: str
) -> None:
    folder, record = str(tmp_path / "s"), str(tmp_path / "r")
    live(capsys, backend, clip, *SETTINGS, "--loop", "3", "--save", folder)
    live(capsys, backend, clip, "--ask", "14: and now?", "--resume", folder, "--record", record)
    for name in ("mlx", "cuda"):
        pytest.importorskip("mlx.core" if name == "mlx" else "torch")
        assert main(["replay", record, "--backend", name, "--device", "cpu", "--jsonl"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["compared"] == report["agreed"] > 4 and report["worst"] <= 1e-3


def test_a_replay_in_time(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mlx.core")
    record = str(tmp_path / "r")
    asks = ("--ask", "2: what is it?", "--max-tokens", "5")
    live(capsys, "mlx", clip, *asks, "--record", record)

    class Clock:
        now, slept = 100.0, 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            assert 0 < seconds <= 0.5
            self.now += seconds
            self.slept += seconds

    clock = Clock()
    monkeypatch.setattr(pace, "clock", clock)
    words = ["replay", record, "--backend", "mlx", "--device", "cpu"]
    assert main(words) == 0
    assert clock.slept == 0.0
    plain = capsys.readouterr()
    assert "what is it?" not in plain.out
    assert main([*words, "--in-time"]) == 0
    assert clock.slept == pytest.approx(4.0)
    out, err = capsys.readouterr()
    assert out.startswith("[2.0 s] what is it?\n> ") and out.endswith(plain.out)
    assert err.count(" tokens; cache ") == 4
    assert main([*words, "--in-time", "--jsonl"]) == 0
    assert clock.slept == pytest.approx(8.0)
    assert json.loads(capsys.readouterr().out)["event"] == "replay"
