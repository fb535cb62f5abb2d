"""What ``omnilive devices`` finds and says."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_devices import FakeCv2, FakeSound, Fault

from omni_core.errors import MediaError
from omnilive import devices, doctor
from omnilive.assistant import choose_devices
from omnilive.capture import cameras, listing, soundservers
from omnilive.capture.cameras import Found
from omnilive.capture.clock import VirtualClock
from omnilive.capture.listing import CameraEntry, MicrophoneEntry
from omnilive.capture.soundservers import silent_server
from omnilive.cli import main


def loud(first: int, count: int) -> np.ndarray:
    return np.full(count, 0.1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock()
    monkeypatch.setattr(devices, "SystemClock", lambda: clock)
    return clock


def have(
    monkeypatch: pytest.MonkeyPatch,
    sound: FakeSound,
    cv2: FakeCv2,
    named: list[Found],
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", sound)
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setattr(listing, "found_cameras", lambda: named)


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of sound servers, empty, in place of this machine's; and one of programs."""
    for name in ("PULSE_SERVER", "PULSE_RUNTIME_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pulse").mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def test_each_device_is_tried(monkeypatch: pytest.MonkeyPatch, clock: VirtualClock) -> None:
    names = ("Built-in", "Headset", "Line in")
    faults = (None, Fault("open"), Fault("stall"))
    sound = FakeSound(clock, rate=48_000, channels=2, names=names, faults=faults, sound=loud)
    cv2 = FakeCv2(clock, faults=(None, Fault("open"), Fault("none")))
    named = [Found(0, "Front"), Found(2, "Back"), Found(3, "Side")]
    have(monkeypatch, sound, cv2, named)
    assert list(listing.microphones(clock)) == [
        MicrophoneEntry(0, "Built-in", True, 48_000, 2, pytest.approx(-20, abs=0.1)),
        MicrophoneEntry(
            1,
            "Headset",
            False,
            48_000,
            2,
            None,
            "cannot be opened: Error opening InputStream: Device unavailable",
        ),
        MicrophoneEntry(2, "Line in", False, 48_000, 2, None, "gives nothing"),
    ]
    assert all(stream.closed for stream in sound.opened)
    problem = "it is not there, in use, or not allowed to this program"
    assert list(listing.cameras()) == [
        CameraEntry(0, "Front", True, 16, 12, 30.0),
        CameraEntry(2, "Back", False, problem=problem),
        CameraEntry(3, "Side", False, problem="gives no frames"),
    ]
    assert all(video.released for video in cv2.opened)


def test_the_table(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    have(monkeypatch, FakeSound(clock, sound=loud), FakeCv2(clock), [Found(0, "Front\x1b[2J")])
    assert devices.run()
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:4] == [
        "cameras",
        "* 0 Front\ufffd[2J 16x12 at 30 fps",
        "microphones",
        "* 0 Fake microphone 16000 Hz, 1 channel [#######...] -20 dB",
    ]
    assert err == ""


def test_rows_for_programs(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    have(monkeypatch, FakeSound(clock, sound=loud), FakeCv2(clock), [Found(0, "Front")])
    assert devices.run(jsonl=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["device"], row["name"], row["default"]) for row in rows] == [
        ("camera", "Front", True),
        ("microphone", "Fake microphone", True),
    ]


def test_silence_is_pointed_out(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = FakeSound(clock, faults=(Fault("zeros"),))
    have(monkeypatch, quiet, FakeCv2(clock), [Found(0, "Front")])
    devices.run()
    assert "[..........] silence: muted, or not permitted?" in capsys.readouterr().out


def test_nothing_found_and_nothing_installed(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    have(monkeypatch, FakeSound(clock, names=()), FakeCv2(clock, faults=(Fault("open"),) * 9), [])
    assert not devices.run()
    out, err = capsys.readouterr()
    assert out == "" and [line.split(":")[1] for line in err.splitlines()] == [
        " no camera was found",
        " no microphone was found",
    ]

    def missing() -> None:
        raise MediaError("it is missing")

    monkeypatch.setattr(listing, "sound_library", missing)
    monkeypatch.setattr(listing, "opencv", missing)
    assert not devices.run()
    assert capsys.readouterr() == ("", "omnilive: it is missing\nomnilive: it is missing\n")


def test_linux_names(tmp_path: Path) -> None:
    for node, index, name in [
        ("video0", "0", "C920\n"),
        ("video1", "1", "C920"),
        ("video10", "0", "X"),
    ]:
        (tmp_path / node).mkdir()
        (tmp_path / node / "index").write_text(index)
        (tmp_path / node / "name").write_text(name)
    (tmp_path / "video2").mkdir()
    assert cameras._linux(tmp_path) == [Found(0, "C920"), Found(10, "X")]
    assert cameras._linux(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (
            '{"SPCameraDataType": [{"_name": "Desk", "spcamera_unique-id": "b"},'
            ' {"_name": "FaceTime", "spcamera_unique-id": "a"}]}',
            [Found(0, "FaceTime"), Found(1, "Desk")],
        ),
        ("no JSON", []),
        ('{"SPCameraDataType": [{}]}', []),
        ("[]", []),
    ],
)
def test_macos_names(monkeypatch: pytest.MonkeyPatch, answer: str, found: list[Found]) -> None:
    done = SimpleNamespace(stdout=answer)
    monkeypatch.setattr(cameras.subprocess, "run", lambda *_, **__: done)
    assert cameras._macos() == found


def nothing(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server anywhere."""


def installed(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = servers / "bin" / "pulseaudio"
    program.touch()
    program.chmod(0o755)


def named(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_SERVER", "{machine}unix:/nowhere/native tcp:127.0.0.1:1")


def left_behind(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(servers / "pulse" / "native"))


def running(servers: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(servers / "pipewire-0"))
    server.listen()
    return server


def far_away(servers: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    server = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("PULSE_SERVER", f"tcp:127.0.0.1:{server.getsockname()[1]}")
    return server


def out_of_reach(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULSE_RUNTIME_PATH", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, "/" + "x" * 5000)


def misnamed(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_SERVER", "tcp:127.0.0.1:" + "9" * 30)


Server = Callable[[Path, pytest.MonkeyPatch], socket.socket | None]
ANSWERS = "answers, but no microphone is seen through it: plug one in, or open ALSA's way"


@pytest.mark.parametrize(
    ("server", "line", "state"),
    [
        (nothing, "no microphone was found: plug one in", "none"),
        (out_of_reach, "no microphone was found: plug one in", "none"),
        (misnamed, "does not answer (tcp:127.0.0.1:9999", "warn"),
        (installed, "native: No such file or directory), so no microphone is seen: start", "warn"),
        (installed, "start it (pulseaudio --start), or go on without: --mic none", "warn"),
        (named, "does not answer ({machine}unix:/nowhere/native: No such file", "warn"),
        (named, "start it or mend PULSE_SERVER, or go on without: --mic none", "warn"),
        (left_behind, "pulse/native: Connection refused), so no microphone is seen", "warn"),
        (running, f"pipewire-0 {ANSWERS}", "warn"),
        (far_away, f"{ANSWERS} to the server (Debian, Ubuntu: apt install libasound2-pl", "warn"),
    ],
)
def test_a_sound_server_that_gives_nothing_is_no_machine_without_microphones(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    clock: VirtualClock,
    servers: Path,
    server: Server,
    line: str,
    state: str,
) -> None:
    have(monkeypatch, FakeSound(clock, names=()), FakeCv2(clock, faults=(Fault("open"),) * 9), [])
    with ExitStack() as stack:
        stack.callback(getattr(server(servers, monkeypatch), "close", lambda: None))
        assert not devices.run()
        assert line in capsys.readouterr().err.splitlines()[1]
        found = doctor._microphones()
        assert found.state == state and line in f"{found.found}: {found.mend}"
        assert main(["live", "--camera", "none"]) == 1
        (told,) = capsys.readouterr().err.splitlines()
        assert "without a camera a microphone is needed, but " in told and line in told


@pytest.mark.parametrize(
    ("place", "address"),
    [("tcp:[::1]:99", ("::1", 99)), ("{it}tcp6:far.example", ("far.example", 4713))],
)
def test_addresses_of_sound_servers(
    monkeypatch: pytest.MonkeyPatch, place: str, address: tuple[str, int]
) -> None:
    tried: list[object] = []

    def refuse(address: object, _: float) -> None:
        tried.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PULSE_SERVER", place)
    told = str(silent_server())
    assert tried == [address] and f"({place}: Connection refused)" in told


def test_a_camera_alone_is_told_why_nothing_is_heard(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    clock: VirtualClock,
    servers: Path,
) -> None:
    have(monkeypatch, FakeSound(clock, names=()), FakeCv2(clock), [])
    options = SimpleNamespace(source=None, camera="http://127.0.0.1:9/x", mic=None)
    assert choose_devices(options).microphone is None
    assert capsys.readouterr().err == ""
    installed(servers, monkeypatch)
    assert choose_devices(options).microphone is None
    assert capsys.readouterr().err.startswith(
        "omnilive: no microphone is used: the sound server does not answer ("
    )


def test_the_demo_clip_is_played_with_a_word_about_the_server(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    clock: VirtualClock,
    servers: Path,
) -> None:
    have(monkeypatch, FakeSound(clock, names=()), FakeCv2(clock), [])
    monkeypatch.setattr("omnilive.models.Prepared.load", None)
    told: list[str] = []
    for _ in range(2):
        assert main(["live", "--fast", "--device", "cpu"]) == 1
        told.append(capsys.readouterr().err)
        installed(servers, monkeypatch)
    assert all("playing the demo clip" in lines for lines in told)
    assert ["the sound server does not answer" in lines for lines in told] == [False, True]


def test_elsewhere_there_is_no_server_to_look_for(
    monkeypatch: pytest.MonkeyPatch, servers: Path
) -> None:
    named(servers, monkeypatch)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert soundservers.no_microphones() == soundservers.NONE
