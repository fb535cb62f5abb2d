"""What devices do, done to a capture of fake ones: the stream goes on."""

from __future__ import annotations

import builtins
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from fake_devices import RATE, FakeSound, Fault, places, taken_at
from test_capture import Rig

from omni_core import UnitMedia
from omni_core.errors import MediaError
from omni_core.frontend.framing import UnitFramer
from omnilive.capture import (
    Capture,
    SystemClock,
    VirtualClock,
    choose_camera,
    choose_microphone,
    soundservers,
)
from omnilive.capture.camera import usable
from omnilive.capture.clock import SteadyTime
from omnilive.capture.reopening import PAUSES, Host, Reopener


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def silent(unit: UnitMedia) -> float:
    """Seconds of silence in a unit."""
    return float((unit.audio == 0).sum()) / RATE


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("stop", "has stopped"),
        ("stall", "gives nothing for 2 s"),
        ("raise", "has failed: Unanticipated host error"),
    ],
)
def test_a_microphone_that_fails_is_opened_anew(rig: Rig, kind: str, says: str) -> None:
    rig.start(sound={"faults": (Fault(kind, 4.0), Fault("open"), Fault("open"))})
    units = rig.units(16)
    assert all(unit.audio.size == RATE for unit in units)
    assert [unit.stop for unit in units] == [float(n) for n in range(1, 17)]
    assert silent(units[2]) == 0 and silent(units[14]) == 0 and silent(units[5]) == 1
    assert max(map(rig.skew, units)) < 1.0
    assert all(len(unit.frames) == 1 for unit in units)
    assert rig.warnings[0].startswith(f"microphone Fake microphone {says}; trying")
    assert rig.warnings[1].startswith("microphone Fake microphone is back after")
    assert rig.sounddevice.looks == 3
    assert rig.view.microphone_state == "on"


def test_a_microphone_that_fails_and_then_stalls_holds_up_neither_units_nor_the_end(
    rig: Rig,
) -> None:
    rig.start(sound={"faults": (Fault("raise", 2.5), *[Fault("stall", 1.0)] * 9)})
    ended = 0.0
    for unit in rig.stream():
        assert unit.audio.size == RATE and len(unit.frames) == 1
        if unit.stop == 15.0:
            ended = rig.clock.now()
            rig.capture.stop()
    assert rig.clock.now() - ended < 2 and unit.stop == 15.0
    assert all(stream.closed for stream in rig.sounddevice.opened)
    assert all("\n" not in line for line in rig.warnings)
    assert "has failed: Unanticipated host error" in rig.warnings[0]
    assert any("gives nothing for 2 s" in line for line in rig.warnings[1:])


def test_pauses_between_tries_grow_and_the_loss_is_told_once(rig: Rig) -> None:
    tries: list[float] = []

    class Absent(FakeSound):
        def _initialize(self) -> None:
            tries.append(self.clock.now())

    rig.start(sound={"faults": (Fault("stop", 1.0), *[Fault("open")] * 99)})
    rig.sounddevice.__class__ = Absent
    rig.units(50)
    gaps = np.diff(tries)
    assert gaps[:5] == pytest.approx(PAUSES[1:], abs=0.1)
    assert gaps[5:] == pytest.approx([10.0] * len(gaps[5:]), abs=0.1) and len(gaps) >= 6
    assert len(rig.warnings) == 1
    assert rig.view.microphone_state == "lost"


def test_a_microphone_pulled_out_is_found_by_name_where_it_comes_back(rig: Rig) -> None:
    rig.start(sound={"faults": (Fault("stop", 2.0),), "names": ("Built-in", "USB")})
    rig.capture._microphone = choose_microphone("usb")
    rig.sounddevice.names = ("Built-in", "Other", "USB")
    for unit in rig.stream():
        if unit.stop == 2.0:
            rig.sounddevice.names = ("Built-in",)
        if unit.stop == 8.0:
            assert rig.capture.view().microphone_state == "lost"
            rig.sounddevice.names = ("USB", "Built-in")
        if unit.stop == 18.0:
            assert rig.capture.view().microphone_state == "on"
            break
    assert "is not there: no microphone is called 'USB'" not in rig.warnings[0]
    assert [line.split()[2] for line in rig.warnings] == ["has", "is", "lost"]


def test_a_rate_that_changes(rig: Rig) -> None:
    rig.start(sound={"rate": 48_000})
    units = []
    for unit in rig.stream():
        units.append(unit)
        if unit.stop == 5.0:
            # As when a headset changes to the way it has for calls.
            rig.sounddevice.rate = RATE
        if unit.stop == 25.0:
            break
    assert "samples a second in place of 48000; trying" in "".join(rig.warnings)
    assert all(unit.audio.size == RATE for unit in units)
    assert silent(units[22]) == 0 and rig.skew(units[22]) < 0.2


def test_samples_that_are_no_numbers(rig: Rig) -> None:
    rig.start(camera=False, sound={"faults": (Fault("nan", 2.0),)})
    units = rig.units(6)
    assert all(np.isfinite(unit.audio).all() for unit in units)
    assert silent(units[4]) == pytest.approx(0.5)
    assert len(rig.warnings) == 1 and "no numbers" in rig.warnings[0]
    assert rig.capture._microphone is not None and rig.capture._microphone.broken > RATE


@pytest.mark.parametrize(
    ("platform", "setting"),
    [
        ("darwin", "System Settings > Privacy & Security > Microphone"),
        ("linux", "the system's sound settings"),
    ],
)
def test_a_microphone_that_gives_only_zeros_is_told_of_once(
    platform: str, setting: str, rig: Rig
) -> None:
    rig.monkeypatch.setattr("omnilive.capture.permissions.sys.platform", platform)
    rig.start(sound={"faults": (Fault("zeros", 2.0),)})
    states = {}
    for unit in rig.stream():
        states[unit.stop] = rig.capture.view().microphone_state
        if unit.stop == 20.0:
            break
    (told,) = rig.warnings
    assert told.startswith("microphone Fake microphone gives silence: unmute it")
    assert setting in told
    assert states[6.0] == "on" and states[8.0] == "silent"


def test_sound_lost_by_the_driver_becomes_silence(rig: Rig) -> None:
    rig.start(sound={"faults": (Fault("overflow", 4.0),)})
    units = rig.units(12)
    assert sum(map(silent, units)) == pytest.approx(0.5, abs=0.03)
    assert rig.view.filled_samples == pytest.approx(RATE / 2, abs=500)
    assert max(rig.skew(unit) for unit in units[6:]) < 0.2
    assert rig.warnings == ["the microphone lost 0.50 s of sound so far; silence is in its place"]


def test_sound_that_comes_late_and_all_at_once_is_all_used(rig: Rig) -> None:
    rig.start(sound={"faults": (Fault("hiccup", 3.5),)})
    units = rig.units(10)
    steps = np.diff(places(np.concatenate([unit.audio for unit in units])))
    assert (steps[steps != 1] == 1 - 30_000).all()
    assert rig.warnings == [] and rig.view.filled_samples == 0


def test_a_full_queue_loses_the_oldest_and_says_so(rig: Rig) -> None:
    rig.start(camera=False)
    units = []
    for unit in rig.stream():
        units.append(unit)
        if unit.stop == 3.0:
            # Nobody looks after the microphone for 8 seconds, as when a machine is starved.
            pump = rig.capture._pump
            rig.capture._pump, waiting = None, rig.clock._due
            rig.clock._due = [entry for entry in waiting if entry[2] is not pump]
            rig.clock.wait(8.0)
            rig.clock._put(0.0, pump)
            rig.capture._pump = pump
        if unit.stop >= 20.0:
            break
    assert sum(map(silent, units)) + rig.framer.dropped_samples / RATE >= 3.0
    assert all(unit.audio.size == RATE for unit in units)
    assert rig.skew(units[-1]) < 0.2


@pytest.mark.parametrize("kind", ["gone", "raise"])
def test_a_camera_that_fails_mid_unit_is_opened_anew(rig: Rig, kind: str) -> None:
    rig.start(camera_faults=(Fault(kind, 4.5), Fault("open")))
    units = rig.units(12)
    assert [unit.stop for unit in units] == [float(n) for n in range(1, 13)]
    # Sound is whole, and what was seen last stays for a while.
    assert all(silent(unit) == 0 for unit in units)
    assert all(len(unit.frames) == 1 for unit in units)
    assert [line.split()[2] for line in rig.warnings] == [
        "gives" if kind == "gone" else "has",
        "is",
    ]
    assert [video.released for video in rig.cv2.opened] == [True, True, True]
    assert max(rig.skew(unit) for unit in units[9:]) < 0.2


def test_a_camera_that_never_comes_back(rig: Rig) -> None:
    rig.start(camera_faults=(Fault("gone", 4.5), *[Fault("open")] * 99))
    units = rig.units(30)
    assert [unit.stop for unit in units] == [float(n) for n in range(1, 31)]
    assert all(silent(unit) == 0 for unit in units)
    assert [len(unit.frames) for unit in units[-10:]] == [0] * 10
    view = rig.view
    assert view.camera_state == "lost" and view.frame is None
    assert len(rig.warnings) == 1


def test_without_a_microphone_a_lost_camera_still_gives_units(rig: Rig) -> None:
    rig.start(microphone=False, camera_faults=(Fault("gone", 4.5), *[Fault("open")] * 99))
    units = rig.units(30)
    assert [unit.stop for unit in units] == pytest.approx(range(1, 31), abs=1e-6)
    assert units[-1].frames == () and units[-1].audio is None


@pytest.mark.parametrize("kind", ["empty", "none", "wide", "float"])
def test_frames_that_are_none_are_skipped_and_counted(rig: Rig, kind: str) -> None:
    rig.start(camera_faults=(Fault(kind, 3.0),))
    units = rig.units(8)
    assert all(len(unit.frames) == 1 and unit.frames[0].shape == (12, 16, 3) for unit in units)
    assert rig.view.skipped_frames > 5
    assert [line.split()[0] for line in rig.warnings] in ([], ["camera", "camera"])


def test_frames_of_other_forms() -> None:
    grey = np.full((4, 6), 7, np.uint8)
    colour = np.dstack([grey * 0 + 1, grey * 0 + 2, grey * 0 + 3])
    assert usable(True, grey).tolist() == usable(True, grey[..., None]).tolist()
    assert usable(True, grey).shape == (4, 6, 3)
    assert usable(True, colour)[0, 0].tolist() == [3, 2, 1]
    assert usable(True, np.dstack([colour, grey]))[0, 0].tolist() == [3, 2, 1]
    assert usable(False, colour) is None and usable(True, np.dstack([grey, grey])) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"camera_faults": (Fault("open"),)}, r"^camera 0 cannot be opened: it is not there"),
        (
            {"sound": {"faults": (Fault("open"),)}},
            r"^microphone .* Device unavailable .*--mic none",
        ),
        ({"sound": {"faults": (Fault("stall"),)}}, r"^microphone .* gives nothing for 10 s"),
    ],
)
def test_what_does_not_open_at_first_is_refused(
    rig: Rig, settings: dict[str, Any], says: str
) -> None:
    rig.start(**settings)
    with pytest.raises(MediaError, match=says) as refused:
        rig.units(1)
    assert "\n" not in str(refused.value)
    assert all(stream.closed for stream in rig.sounddevice.opened)
    assert all(video.released for video in rig.cv2.opened)


def test_what_was_given_before_the_stream_is_forgotten(rig: Rig) -> None:
    rig.start()
    rig.capture.open()
    # A model is loaded.
    rig.clock.wait(20.0)
    units = rig.units(3)
    assert units[0].start == 0 and max(map(rig.skew, units)) < 0.2
    assert taken_at(units[0].frames[0]) > 20
    assert rig.warnings == []


def test_on_macos_the_main_thread_asks_for_consent(rig: Rig) -> None:
    rig.monkeypatch.setattr("omnilive.capture.camera.sys.platform", "darwin")
    rig.start(microphone=False)
    rig.units(2)
    assert [video.released for video in rig.cv2.opened] == [True, True]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module named 'sounddevice'"), r"pip install -e '\.\[live\]'"),
        (OSError("PortAudio library not found"), "apt install libportaudio2"),
        (RuntimeError("Error initializing PortAudio\nmore"), "cannot be used: Error initializing"),
    ],
)
def test_a_missing_sound_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    real = builtins.__import__

    def refused(name: str, *rest: Any, **others: Any) -> Any:
        if name == "sounddevice":
            raise error
        return real(name, *rest, **others)

    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(builtins, "__import__", refused)
    with pytest.raises(MediaError, match=says) as told:
        choose_microphone("default")
    assert "\n" not in str(told.value) and "--mic none" in str(told.value)
    assert choose_microphone("none") is None


def test_choosing_a_microphone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeSound(VirtualClock(), names=("USB mic", "USB mic (2)", "Line in"))
    monkeypatch.setitem(sys.modules, "sounddevice", library)
    chosen = {word: choose_microphone(word).name for word in ("default", "2", "line", "usb MIC")}
    assert chosen == {
        "default": "USB mic",
        "2": "Line in",
        "line": "Line in",
        "usb MIC": "USB mic",
    }
    with pytest.raises(MediaError, match=r"several .* 'usb'; choose by number: 0 USB mic, 1 USB"):
        choose_microphone("usb")
    with pytest.raises(MediaError, match=r"no microphone is called '9'; .* 2 Line in"):
        choose_microphone("9")
    library.names = ()
    monkeypatch.setattr(soundservers, "silent_server", lambda: None)
    with pytest.raises(MediaError, match="no microphone was found"):
        choose_microphone("default")
    absence = soundservers.Absence("the server is dead", "start it")
    monkeypatch.setattr(soundservers, "silent_server", lambda: absence)
    with pytest.raises(MediaError, match="the server is dead: start it"):
        choose_microphone("default")


def test_choosing_a_camera(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from omnilive.capture import choosing
    from omnilive.capture.cameras import Found

    found = [Found(0, "FaceTime HD"), Found(2, "Desk View")]
    monkeypatch.setattr(choosing, "found_cameras", lambda: found)
    words = ("default", "2", "/dev/video2", "desk", "rtsp://me:secret@door/1", "7")
    chosen = {word: choose_camera(word) for word in words}
    assert [(one._place, one.name) for one in chosen.values()] == [
        (0, "FaceTime HD"),
        (2, "Desk View"),
        (2, "Desk View"),
        (2, "Desk View"),
        ("rtsp://me:secret@door/1", "rtsp://door/1"),
        (7, "7"),
    ]
    assert choose_camera("none") is None
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    assert choose_camera(str(clip)).name == "clip.mp4"
    with pytest.raises(MediaError, match=r"no camera or file .* 'lens'; .*: 0 FaceTime HD, 2"):
        choose_camera("lens")


def test_files_in_place_of_devices(rig: Rig, tmp_path: Path) -> None:
    clip = str(write_clip(tmp_path / "clip.mp4", seconds=3.4, sound_seconds=3.0))
    capture = Capture(
        choose_camera(clip),
        choose_microphone(clip),
        UnitFramer(1.0, 1.0),
        clock=rig.clock,
        warn=rig.warnings.append,
    )
    capture.open()
    units = []
    for unit in capture.units():
        units.append(unit)
        assert rig.clock.now() >= unit.stop - 0.05
    assert units[-1].stop == pytest.approx(3.4, abs=0.1)
    assert [unit.audio.size for unit in units[:3]] == [RATE] * 3
    assert all(len(unit.frames) == 1 for unit in units)
    assert [bool(unit.audio.any()) for unit in units[:3]] == [True] * 3
    # After the file's sound there is silence.
    assert not units[3].audio[RATE // 5 :].any()
    assert rig.warnings == []


def test_a_driver_that_hangs_is_left_behind() -> None:
    """On the system's clock, with threads: the stream opens the device anew, twice at most."""
    release = threading.Event()
    warnings: list[str] = []

    class Hanging:
        def __init__(self) -> None:
            self.heard, self.failure = None, None
            self.worker = clock.run("hanging", self._work())

        def _work(self):
            self.heard = clock.now()
            release.wait(20)
            yield 0.0

    clock = SystemClock()
    steady = SteadyTime(clock)
    began = time.monotonic()
    shift = [0.0]
    host = Host(clock, lambda: steady.now() + shift[0], warnings.append)
    reopener = Reopener("camera X", host, Hanging, 2.0)
    openings = set()
    for _ in range(400):
        opening = reopener.tend()
        openings.add(id(opening)) if opening is not None else None
        shift[0] += 0.1
    assert len(openings) == 2 and reopener.state == "lost"
    assert [line.split()[2] for line in warnings] == ["gives", "is", "gives"]
    release.set()
    reopener.close()
    for worker in reopener.workers():
        worker.join(2.0)
    assert reopener.workers() == [] and time.monotonic() - began < 5


def test_threads_end_with_the_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clip = str(write_clip(tmp_path / "clip.mp4", seconds=60.0))
    capture = Capture(
        choose_camera(clip), choose_microphone(clip), UnitFramer(0.25, 4.0), warn=print
    )
    for _ in capture.units():
        names = {thread.name for thread in threading.enumerate() if thread.daemon}
        assert {"capture", "camera file"} <= names
        began = time.monotonic()
        capture.stop()
    assert time.monotonic() - began < 2
    assert not {"capture", "camera file"} & {thread.name for thread in threading.enumerate()}
