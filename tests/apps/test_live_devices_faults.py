"""``omnilive live`` on devices while something is wrong: it goes on, or ends soon and cleanly."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_live_devices import started
from virtual_devices import VirtualCamera, virtual_microphone

from omnilive.cli import main

BACKEND = ["--backend", "cuda", "--device", "cpu"]
GREY = np.full((112, 112, 3), 90, np.uint8)
LARGE = np.random.default_rng(2).integers(0, 256, (480, 640, 3), np.uint8)

# Has files grow no further than that: what a full disk does, at the same place each time.
SMALL_DISK = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, 24_000))
sys.argv = ["omnilive", *sys.argv[1:]]
runpy.run_module("omnilive", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed")


def events_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_disk_that_fills_up_costs_the_recording_alone(untrained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    frames = [GREY]
    with VirtualCamera(lambda _: frames[-1]) as camera:
        words = ["live", "--jsonl", "--camera", camera.address, "--mic", "none", *BACKEND]
        words += ["--model", str(untrained), "--duration", "6", "--record", str(run)]
        words += ["--ask", "5: what is it?", "--max-tokens", "2"]
        with subprocess.Popen(
            [sys.executable, "-c", SMALL_DISK, *words],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            events = []
            for line in process.stdout or ():
                events.append(json.loads(line))
                if events[-1]["event"] == "unit" and events[-1]["t"] == 2.0:
                    frames.append(LARGE)
            err = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and "Traceback" not in err, err
    # The stream goes on to its end, and is told once what it has lost.
    assert [event["t"] for event in events if event["event"] == "unit"][-1] == 6.0
    assert [event["question"] for event in events if event["event"] == "answer"] == ["what is it?"]
    (told,) = [event["message"] for event in events if event["event"] == "warning"][-1:]
    assert "recording" in told and "File too large" in told, events
    assert err.count("File too large") == 1
    # What was recorded until then is whole.
    media = list((run / "media").iterdir())
    assert 2 <= len(media) < 6
    assert main(["replay", str(run)]) == 0


def held(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and that nobody has asked after is no running one.
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("speaking", [False, True])
def test_a_signal_in_the_middle_of_an_answer(
    speaking: bool, number: int, untrained: Path, tmp_path: Path
) -> None:
    voice = tmp_path / "voice"
    spoken = {"OMNILIVE_VOICE": f"sh -c 'echo $$ >{voice}; exec sleep 300'"}
    with VirtualCamera(lambda _: GREY) as camera:
        words = ["--camera", camera.address, "--mic", "none", *BACKEND, "--model", str(untrained)]
        words += ["--ask", "1: what is it?", "--max-tokens", "3000", "--budget", "8192"]
        words += ["--record", str(tmp_path / "run"), "--save", str(tmp_path / "saved")]
        with started([*words, *(["--speak"] if speaking else [])], spoken) as process:
            seen: list[str] = []
            for line in process.stdout or ():
                seen.append(line)
                if json.loads(line)["event"] == "token" and (not speaking or voice.exists()):
                    break
            began = time.monotonic()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    events = events_of("".join(seen) + out)
    assert process.returncode == (143 if number == signal.SIGTERM else 0), err
    assert time.monotonic() - began < 4 and "Traceback" not in err
    (answer,) = [event for event in events if event["event"] == "answer"]
    assert sum(event["event"] == "token" for event in events) < 2900 and answer["text"]
    assert events[-1]["event"] == "summary" and (tmp_path / "saved" / "saved.json").exists()
    assert main(["replay", str(tmp_path / "run")]) == 0
    if speaking:
        assert not held(int(voice.read_text()))


def damaged(whole: np.ndarray, kind: int) -> np.ndarray:
    """A JPEG as it comes where its way is bad: cut short, not one at all, or with a hole."""
    rng = np.random.default_rng(kind)
    noise = rng.integers(0, 256, whole.size, np.uint8)
    half = whole.size // 2
    return [whole[:half], noise, np.concatenate([whole[:half], noise[half:]])][kind]


def test_frames_that_are_damaged_on_their_way(
    untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.virtual_devices import cv2

    encode, numbers = cv2.imencode, itertools.count()

    def sent(*arguments: Any) -> tuple[bool, np.ndarray]:
        number = next(numbers)
        whole = encode(*arguments)[1].ravel()
        return True, damaged(whole, number % 8) if 30 <= number < 62 and number % 8 < 3 else whole

    monkeypatch.setattr(cv2, "imencode", sent)
    with VirtualCamera(lambda _: GREY) as camera:
        words = ["--camera", camera.address, "--mic", "none", *BACKEND, "--model", str(untrained)]
        with started([*words, "--duration", "9"], {}) as process:
            out, err = process.communicate(timeout=90)
    events = events_of(out)
    assert process.returncode == 0 and "Traceback" not in err, err
    assert events[-1]["event"] == "summary" and events[-1]["t"] == 9.0
    units = [event for event in events if event["event"] == "unit"]
    assert [unit["t"] for unit in units] == [float(second) for second in range(1, 10)]
    assert units[0]["tokens"]["vision"] == units[-1]["tokens"]["vision"] > 0
    assert next(numbers) > 62


def test_silence_is_told_and_nobody_answers_it(untrained: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install -e '.[live]' in the checkout")
    with virtual_microphone() as microphone:
        words = ["--camera", "none", "--mic", "default", *BACKEND, "--model", str(untrained)]
        with started([*words, "--duration", "8"], microphone.environment) as process:
            out, err = process.communicate(timeout=90)
    events = events_of(out)
    assert process.returncode == 0, err
    told = [event["message"] for event in events if "gives silence" in event.get("message", "")]
    assert len(told) == 1 and "unmute it" in told[0]
    assert not [event for event in events if event["event"] in ("token", "answer")]
    assert events[-1]["t"] == 8.0 and events[-1]["answers"] == 0
