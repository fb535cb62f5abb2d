"""``omnilive live`` on devices: what must not end a stream, and ends that come early."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip
from screen_terminals import Terminal
from test_live_devices import started
from virtual_devices import VirtualCamera

from omnilive.cli import main
from omnilive.speech.sentences import Sentences

BACKEND = ["--mic", "none", "--backend", "cuda", "--device", "cpu"]
GREY = np.full((112, 112, 3), 90, np.uint8)


def test_a_question_and_a_watch_that_do_not_fit_cost_no_stream(untrained: Path) -> None:
    long = "word " * 800
    with VirtualCamera(lambda _: GREY) as camera:
        arguments = ["--camera", camera.address, *BACKEND, "--model", str(untrained)]
        arguments += ["--duration", "4", "--budget", "400", "--max-tokens", "4"]
        arguments += ["--ask", f"1: {long}", "--ask", "3: what is it?", "--watch", long]
        with started(arguments, {}) as process:
            out, err = process.communicate(timeout=60)
    events = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0, err
    assert [event["question"] for event in events if event["event"] == "answer"] == ["what is it?"]
    told = [event["message"] for event in events if "was not asked" in event.get("message", "")]
    assert len(told) == 2 and all("ask in fewer words" in message for message in told)
    assert events[-1]["event"] == "summary" and events[-1]["t"] == 4.0


def test_a_question_that_the_stream_does_not_reach_is_told(
    untrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = write_clip(tmp_path / "short.mp4", seconds=3, rate=None)
    camera = ["--camera", str(short), *BACKEND, "--model", str(untrained), "--max-tokens", "2"]
    asks = ["--ask", "1: what is it?", "--ask", "40: and now?"]
    assert main(["live", "--jsonl", *camera, *asks]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["question"] for event in events if event["event"] == "answer"] == ["what is it?"]
    (told,) = [event["message"] for event in events if "before the" in event.get("message", "")]
    assert told.endswith("s, before the question at 40 s; ask earlier")


@pytest.mark.parametrize("many", [0, 150])
def test_sigterm_ends_it_soon_wherever_it_is(many: int, untrained: Path, tmp_path: Path) -> None:
    with VirtualCamera(lambda _: GREY) as camera:
        arguments = ["--camera", camera.address, *BACKEND, "--model", str(untrained)]
        arguments += ["--record", str(tmp_path / "run")]
        for number in range(many):
            arguments += ["--watch", f"tell me {number}"]
        with started(arguments, {}) as process:
            if many:
                next(line for line in process.stdout or () if '"unit"' in line)
            else:
                until = time.monotonic() + 30
                while not (tmp_path / "run").exists() and time.monotonic() < until:
                    time.sleep(0.02)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and time.monotonic() - began < 3, err
    if not many:
        assert err == "omnilive: terminated\n" and not (tmp_path / "run").exists()


def test_a_camera_that_hangs_neither_holds_the_end_up_nor_breaks_it(untrained: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        arguments = ["--camera", address, *BACKEND, "--model", str(untrained)]
        with started(arguments, {}) as process, server.accept()[0]:
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "terminate called" not in err, err
    assert json.loads(out.splitlines()[-1])["event"] == "summary"
    assert time.monotonic() - began < 4


def test_a_reader_that_leaves_costs_no_saved_session(untrained: Path, tmp_path: Path) -> None:
    with VirtualCamera(lambda _: GREY) as camera:
        arguments = ["--camera", camera.address, *BACKEND, "--model", str(untrained)]
        with started([*arguments, "--save", str(tmp_path / "saved")], {}) as process:
            assert process.stdout is not None
            next(line for line in process.stdout if '"unit"' in line)
            process.stdout.close()
            assert process.wait(20) == 0
    assert (tmp_path / "saved" / "saved.json").exists()


def test_a_question_of_the_options_is_answered_aloud(untrained: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    voice = f"sh -c 'cat >>{said}'"
    with VirtualCamera(lambda _: GREY) as camera:
        arguments = ["--camera", camera.address, *BACKEND, "--model", str(untrained), "--speak"]
        arguments += ["--duration", "2", "--ask", "1: what is it?", "--max-tokens", "24"]
        with started(arguments, {"OMNILIVE_VOICE": voice}) as process:
            out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (answer,) = (event for event in map(json.loads, out.splitlines()) if event["event"] == "answer")
    (spoken,) = (Sentences().add(answer["text"] + "\n"),)
    assert spoken and "latency_ms" not in answer
    assert said.read_text().splitlines()[0] == spoken[0]


def test_a_resumed_session_goes_on_at_its_second(untrained: Path, tmp_path: Path) -> None:
    folder, found = str(tmp_path / "s"), []
    with VirtualCamera(lambda _: GREY) as camera:
        for words in (
            ["--model", str(untrained), "--max-tokens", "2", "--save", folder],
            ["--resume", folder, "--ask", "3.5: what is it?"],
        ):
            devices = ["--camera", camera.address, *BACKEND, "--duration", "2"]
            with started([*devices, *words], {}) as process:
                out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            events = map(json.loads, out.splitlines())
            found += [(e["event"], e["t"]) for e in events if e["event"] in ("unit", "answer")]
    units = [("unit", t) for t in (1.0, 2.0, 3.0, 3.5)]
    assert found == [*units, ("answer", 3.5), ("unit", 4.0)]


HUNG_UP = """
import os, runpy, sys
file, *words = sys.argv[1:]
if file:
    os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), 2)
sys.argv = ["omnilive", *words]
runpy.run_module("omnilive", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("errors", ["kept", "shown"])
@pytest.mark.parametrize("screen", [True, False])
def test_a_terminal_that_is_closed_ends_it_in_good_order(
    screen: bool, errors: str, untrained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("rich", reason="pip install -e '.[live]' in the checkout")
    file = tmp_path / "errors"
    with VirtualCamera(lambda _: GREY) as camera:
        words = ["live", "--camera", camera.address, *BACKEND, "--model", str(untrained)]
        words += ["--record", str(tmp_path / "run"), "--save", str(tmp_path / "saved")]
        command = ("-c", HUNG_UP, str(file) if errors == "kept" else "", *words)
        kind = {"TERM": "xterm-256color" if screen else "dumb"}
        with Terminal("", environment=kind, command=command) as terminal:
            events = tmp_path / "run" / "events.jsonl"
            terminal.until(lambda: events.exists() and b'"unit"' in events.read_bytes(), "a unit")
            assert ("\x1b[?1049h" in terminal.text) == screen
            terminal.hang_up()
            if errors == "kept":
                # A shell hands the signal on; without it, what is written tells.
                with suppress(ProcessLookupError):
                    terminal.send(signal.SIGHUP)
            assert terminal.code == 129
    assert "Traceback" not in (file.read_text() if errors == "kept" else terminal.text)
    assert (tmp_path / "saved" / "saved.json").exists()
    assert json.loads(events.read_text().splitlines()[-1])["event"] == "summary"
    assert main(["replay", str(tmp_path / "run")]) == 0


def test_a_question_past_the_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--camera", "http://127.0.0.1:9/x", "--mic", "none", "--duration", "2"]
    assert main(["live", *words, "--ask", "9: what?"]) == 2
    assert "past the end of the stream at 2 s" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_at_the_recordings_start_is_one_line(tmp_path: Path) -> None:
    from omni_core import Recorder
    from omni_core.errors import RecordingError

    recorder = Recorder(tmp_path / "run")
    (tmp_path / "run" / "session.json").symlink_to("/dev/full")
    with pytest.raises(RecordingError, match="No space left"):
        recorder.begin({"model": "x" * 10_000})
    recorder.close()
