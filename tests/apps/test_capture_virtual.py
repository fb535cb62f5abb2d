"""Capture in real time from devices of the system: a PulseAudio source, a camera over HTTP."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from virtual_devices import (
    RATE,
    VirtualCamera,
    found_in,
    noise,
    number_of,
    numbered,
    virtual_microphone,
)

from omni_core import UnitMedia
from omni_core.frontend.framing import UnitFramer
from omnilive.capture import Capture, choose_camera, choose_microphone
from omnilive.devices import run as list_devices


def test_half_a_minute_of_both_is_complete_to_the_sample_and_in_step() -> None:
    played, warnings, units = noise(27.5), [], []
    with virtual_microphone() as microphone, VirtualCamera(numbered) as camera:
        capture = Capture(
            choose_camera(camera.address),
            choose_microphone("default"),
            UnitFramer(1.0, 1.0),
            duration=30.0,
            warn=warnings.append,
        )
        with capture:
            capture.open()
            began = None
            for unit in capture.units():
                if began is None:
                    zero = time.monotonic() - capture.now()
                    began = microphone.play(played)
                units.append(unit)
                assert capture.lag(unit.stop) < 1000
            view = capture.view()
    assert warnings == [] and view.filled_samples == view.dropped_samples == 0
    assert [unit.stop for unit in units] == [float(n) for n in range(1, 31)]
    sound = np.concatenate([unit.audio for unit in units])
    assert sound.size == 30 * RATE
    at = found_in(sound, played[: 2 * RATE])
    # No gap, no repeat, nothing changed but by what 16 bits and the server's volume round.
    np.testing.assert_allclose(sound[at : at + played.size], played, atol=2e-4)
    assert not sound[:at].any() and not sound[at + played.size :].any()
    heard_late = zero + at / RATE - began
    shown = [
        zero + unit.start - camera.given[number_of(unit.frames[0])] for unit in units if unit.frames
    ]
    assert len(shown) == 30
    # Frames are those of their instant: taken before it, and not long; sound likewise.
    assert max(shown) < 0.5 and min(shown) > -0.5
    assert abs(heard_late) < 0.5
    assert max(shown) - heard_late < 0.6 and heard_late - min(shown) < 0.6


def test_a_camera_that_is_cut_off_comes_back() -> None:
    warnings: list[str] = []
    with VirtualCamera(numbered) as camera:
        capture = Capture(
            choose_camera(camera.address),
            None,
            UnitFramer(0.5, 4.0, sound=False),
            duration=20.0,
            warn=warnings.append,
        )
        with capture:
            capture.open()
            newest: list[int] = []
            for unit in capture.units():
                newest += [number_of(frame) for frame in unit.frames[-1:]]
                if unit.stop == 1.0:
                    with camera.unplugged():
                        time.sleep(0.3)
                if any("is back" in line for line in warnings) and unit.stop > 4:
                    assert capture.view().camera_state == "on"
                    break
    assert [line.split()[2] for line in warnings] == ["gives", "is"]
    assert newest[-1] > newest[1] + 15
    assert "camera" not in {thread.name for thread in threading.enumerate()}


def test_a_microphone_that_goes_silent_and_comes_back() -> None:
    warnings: list[str] = []
    units: list[UnitMedia] = []
    with virtual_microphone() as microphone:
        capture = Capture(
            None,
            choose_microphone("pulse"),
            UnitFramer(1.0, 1.0, picture=False),
            warn=warnings.append,
        )
        with capture:
            capture.open()
            microphone.play(noise(60))
            for unit in capture.units():
                units.append(unit)
                if unit.stop == 2.0:
                    microphone.stop()
                if len(units) == 7:
                    break
            began = time.monotonic()
    assert time.monotonic() - began < 5
    assert [unit.stop for unit in units] == [float(n) for n in range(1, 8)]
    assert all(unit.audio.size == RATE for unit in units)
    assert units[1].audio.any() and not units[-1].audio.any()
    assert any("gives nothing for 2 s" in line for line in warnings)


def test_devices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with virtual_microphone() as microphone:
        microphone.play(noise(30))
        assert list_devices()
    out, err = capsys.readouterr()
    line = next(line for line in out.splitlines() if " default " in line)
    # Uniform noise of half the height: 20 log10(0.5 / sqrt 3) decibels.
    assert line.startswith(" * ") and line.endswith("[########..] -11 dB")
    assert "no camera was found" in err and "Choose by number" in out
