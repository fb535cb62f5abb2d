"""``omnilive live`` on a camera and a microphone: the whole command, in real time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from virtual_devices import RATE, VirtualCamera, virtual_microphone

from omnilive.cli import main
from omnilive.models import load
from omnilive.speech.programs import CHOICE
from streamworld import banks, render, script, spec


def scene(thing: int, question: str) -> tuple[np.ndarray, np.ndarray]:
    """A frame of one thing, and somebody of the test split who asks about it."""
    bank = banks.load(banks.SHIPPED, "test", {"espeak-ng"})
    written = script.write(5, 1, 4, "test", spoken=1.0)
    written.thing[:] = thing
    written.form[:, -2:] = [form[2] for form in spec.SPOKEN_FORMS].index(question)
    # A room without noise, and a voice of middling loudness.
    written.voice[..., 3:6] = 30_000
    units = written.flat()
    frame = np.kron(render.frames(units, bank)[-1], np.ones((3, 3, 1), np.uint8))
    return frame, render.sounds(units, bank)[-2:].reshape(-1)


def started(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "omnilive", "live", "--jsonl", *arguments]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command,
        env=os.environ | path | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.shipped
def test_a_spoken_question_is_answered(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    frame, question = scene(spec.FIRST_SHAPE + 3, "what is on the screen")
    backend = ["--backend", "cuda", "--device", "cpu"]
    with virtual_microphone() as microphone, VirtualCamera(lambda _: frame) as camera:
        arguments = ["--camera", camera.address, "--duration", "30", "--max-tokens", "8", *backend]
        arguments += ["--record", str(tmp_path / "run")]
        with started(arguments, microphone.environment) as process:
            lines, due = [], [4.0, 18.0]
            for line in process.stdout or ():
                lines.append(json.loads(line))
                if due and lines[-1]["event"] == "unit" and lines[-1]["t"] >= due[0]:
                    microphone.play(question)
                    due.pop(0)
            errors = process.communicate(timeout=30)[1]
        assert process.returncode == 0, errors
    answers = [event for event in lines if event["event"] == "answer"]
    assert [answer["text"] for answer in answers] == ["red star"] * 2, lines
    assert all(answer["question"] == "" and answer["latency_ms"] < 3000 for answer in answers)
    units = [event for event in lines if event["event"] == "unit"]
    assert sum(unit["dropped"]["samples"] for unit in units) == 0
    # Each turn's end has closed a unit early, and no sound is missing.
    lengths = np.diff([0.0, *(unit["t"] for unit in units)])
    assert (lengths < 0.99).sum() in (2, 3) and abs(units[-1]["t"] - 30) < 0.01
    assert lines[-1]["event"] == "summary"
    media = sorted((tmp_path / "run" / "media").iterdir())
    sound = np.concatenate([np.load(file)["audio"] for file in media])
    assert sound.size == 30 * RATE
    assert main(["replay", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)]
)
def test_a_signal_ends_it_in_good_order(
    number: int, code: int, untrained: Path, tmp_path: Path
) -> None:
    frame = np.full((112, 112, 3), 90, np.uint8)
    with VirtualCamera(lambda _: frame) as camera:
        arguments = ["--camera", camera.address, "--mic", "none", "--model", str(untrained)]
        arguments += ["--backend", "cuda", "--device", "cpu", "--record", str(tmp_path / "run")]
        with started([*arguments, "--save", str(tmp_path / "saved")], {}) as process:
            for line in process.stdout or ():
                if json.loads(line)["event"] == "unit":
                    break
            began = time.monotonic()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert time.monotonic() - began < 3
    assert "Traceback" not in err, err
    events = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == code
    assert events[-1]["event"] == "summary"
    assert (tmp_path / "saved" / "saved.json").exists()
    assert main(["replay", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("given", "numbers", "threads"),
    [("", 29_000_000, [1]), ("2", 29_000_000, []), ("", 31_000_000, [])],
)
def test_a_small_model_takes_one_thread_unless_told_otherwise(
    given: str, numbers: int, threads: list[int], untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from omni_cuda import devices

    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    devices.settle_threads(torch.device("cpu"), numbers)
    devices.settle_threads(torch.device("cuda"), numbers)
    assert asked == threads
    load(str(untrained), "cuda", "cpu")
    assert len(asked) == len(threads) + (not given)


def test_speaking_without_a_voice_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("omnilive.live.prepare", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(CHOICE, raising=False)
    words = ["live", "--camera", "http://127.0.0.1:9/x", "--mic", "none", "--speak"]
    assert main([*words, "--record", str(tmp_path / "run")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("omnilive: no program that speaks was found (espeak-ng, ")
    assert "install espeak-ng (" in line and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--camera", "none", "--mic", "none"], 2, "leave nothing to follow"),
        (["--source", "clip.mp4", "--camera", "0"], 2, "brings its own picture and sound"),
        (["--camera", "no such camera", "--mic", "none"], 1, "no camera or file is called"),
        (["--pause", "0"], 2, "--pause"),
    ],
)
def test_devices_that_cannot_be_are_refused(
    arguments: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["live", *arguments])
    except SystemExit as end:
        found = end.code
    assert found == code
    err = capsys.readouterr().err
    assert line in err and len(err.strip().splitlines()) == 1
