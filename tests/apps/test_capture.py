"""Devices on a virtual clock: units, skew, overload, cuts, switches and the ends of a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_devices import RAMP, RATE, FakeCv2, FakeSound, Fault, places, taken_at

from omni_core import UnitMedia
from omni_core.errors import MediaError
from omni_core.frontend.framing import UnitFramer
from omnilive.capture import Capture, VirtualClock, choose_camera, choose_microphone
from omnilive.capture.framers import WAITING, WAITING_SOUND

Faults = tuple[Fault | None, ...]


@dataclass
class Rig:
    """Fake devices, and a capture of them."""

    monkeypatch: pytest.MonkeyPatch
    clock: VirtualClock = field(default_factory=VirtualClock)
    warnings: list[str] = field(default_factory=list)

    def start(
        self,
        *,
        camera: bool = True,
        microphone: bool = True,
        camera_faults: Faults = (),
        sound: dict[str, Any] | None = None,
        seconds: float = 1.0,
        fps: float = 1.0,
        start: float = 0.0,
        **settings: Any,
    ) -> Capture:
        self.cv2 = FakeCv2(self.clock, faults=camera_faults)
        self.sounddevice = FakeSound(self.clock, **(sound or {}))
        self.monkeypatch.setitem(sys.modules, "cv2", self.cv2)
        self.monkeypatch.setitem(sys.modules, "sounddevice", self.sounddevice)
        self.framer = UnitFramer(
            seconds,
            fps,
            picture=camera,
            sound=microphone,
            start=start,
            waiting=WAITING,
            waiting_sound=WAITING_SOUND,
        )
        self.capture = Capture(
            choose_camera("0") if camera else None,
            choose_microphone("default") if microphone else None,
            self.framer,
            clock=self.clock,
            warn=self.warnings.append,
            start=start,
            **settings,
        )
        return self.capture

    def units(self, count: int, cost: float = 0.0) -> list[UnitMedia]:
        """So many units, each of which keeps the model busy for ``cost`` seconds."""
        taken = []
        for unit in self.stream():
            taken.append(unit)
            self.view = self.capture.view()
            if len(taken) == count:
                break
            self.clock.wait(cost)
        return taken

    def stream(self) -> Iterator[UnitMedia]:
        self.capture.open()
        self.zero = self.clock.now()
        yield from self.capture.units()

    def skew(self, unit: UnitMedia) -> float:
        """By how much the unit's first heard sample and first frame are apart from its start."""
        apart = [0.0]
        if unit.frames:
            apart.append(taken_at(unit.frames[0]) - self.zero - unit.start)
        if unit.audio is not None and unit.audio.any():
            first = int(np.flatnonzero(unit.audio)[0])
            due = round((self.zero + unit.start) * RATE) + first
            off = (int(places(unit.audio)[first]) - due + RAMP // 2) % RAMP - RAMP // 2
            apart.append(off / RATE)
        return max(map(abs, apart))


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def unbroken(units: list[UnitMedia]) -> bool:
    """Whether units follow each other, and their sound without a gap or a repeat."""
    sound = places(np.concatenate([unit.audio for unit in units]))
    steps = np.diff(sound) % RAMP
    lengths = [unit.audio.size == round((unit.stop - unit.start) * RATE) for unit in units]
    chained = [a.stop == b.start for a, b in pairwise(units)]
    return all(lengths) and all(chained) and bool((steps == 1).all())


def test_units_follow_each_other_without_a_gap(rig: Rig) -> None:
    rig.start(fps=2.0)
    units = rig.units(20)
    assert unbroken(units)
    assert [unit.stop for unit in units] == [float(n) for n in range(1, 21)]
    assert all(len(unit.frames) == 2 for unit in units)
    assert max(map(rig.skew, units)) < 0.2
    assert rig.warnings == []
    assert rig.capture.end == pytest.approx(20, abs=0.1) and rig.capture.lag(20.0) < 100
    # Pixels come as blue, green, red, and are to be red, green, blue: else times would be wrong.
    assert taken_at(units[-1].frames[0]) > 10


@pytest.mark.parametrize("microphone", [True, False])
def test_a_stream_may_begin_at_any_second(rig: Rig, microphone: bool) -> None:
    taps: list[float] = []
    capture = rig.start(
        microphone=microphone,
        start=1000.5,
        duration=4.0,
        tap=lambda time, _: taps.append(time),
    )
    assert capture.now() == capture.end == 1000.5
    units: list[UnitMedia] = []
    for unit in rig.stream():
        units.append(unit)
        assert capture.lag(unit.stop) < 1000 and 0 <= capture.end - unit.stop < 1
        assert capture.now() - unit.stop == pytest.approx(capture.lag(unit.stop) / 1e3, abs=1e-3)
        if unit.stop == 1001.5:
            capture.cut(1001.75)
            rig.clock.wait(0.1)
            assert capture.view().time == capture.now() and capture.view().frame is not None
    assert [unit.stop for unit in units] == [1001.5, 1001.75, 1002.75, 1003.75, 1004.5]
    assert units[0].start == 1000.5 and all(unit.frames for unit in units)
    assert capture.end == 1004.5
    if microphone:
        assert unbroken(units) and taps[0] == 1000.5
    assert rig.warnings == []


def test_everything_is_closed_at_the_end(rig: Rig) -> None:
    rig.start()
    rig.units(2)
    assert [stream.closed for stream in rig.sounddevice.opened] == [True]
    assert [video.released for video in rig.cv2.opened] == [True]


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_other_rates_and_channels(rig: Rig, rate: int) -> None:
    def tone(first: int, count: int) -> np.ndarray:
        return np.sin(2 * np.pi * 440 / RATE * np.arange(first, first + count)) / 2

    rig.start(camera=False, sound={"rate": rate, "channels": 2, "sound": tone})
    units = rig.units(5)
    sound = np.concatenate([unit.audio for unit in units])[RATE:]
    # A tone bends by at most its own curvature: a click at a block's border bends more.
    bend = np.abs(np.diff(sound, 2)).max()
    assert bend < 0.5 * (2 * np.pi * 440 / RATE) ** 2 * 1.2
    start = round(rig.zero * RATE) + RATE
    due = tone(start, sound.size)
    lag = int(np.argmax(np.correlate(sound[1000:9000], due[980:9020])))
    assert abs(lag - 20) <= 1 and np.abs(sound).max() == pytest.approx(0.5, abs=0.01)


def test_a_slow_model_meets_bounded_queues_and_recovers(rig: Rig) -> None:
    rig.start()
    lags: list[tuple[float, float]] = []
    most = 0
    for unit in rig.stream():
        now = rig.clock.now() - rig.zero
        lags.append((now, now - unit.stop))
        assert rig.skew(unit) < 1.0
        most = max(most, rig.framer.waiting)
        rig.clock.wait(3.0 if now < 60 else 0.1)
        if now > 80:
            break
    assert most <= WAITING_SOUND
    after = [lag for now, lag in lags if now >= 60]
    assert max(lag for _, lag in lags) <= WAITING_SOUND + 1
    assert all(lag < 1.0 for lag in after[5:]) and after[0] > 3.0
    assert rig.framer.dropped_frames > 20 and rig.framer.dropped_samples > 20 * RATE
    frames, sound = (
        [line for line in rig.warnings if word in line] for word in ("frames", "of sound dropped")
    )
    # Told when it begins, and every 10 s.
    assert 5 <= len(frames) <= 9 and 5 <= len(sound) <= 9
    assert f"{rig.framer.dropped_samples / RATE:.1f} s of sound dropped" in sound[-1]


def test_two_frames_a_unit_of_which_one_is_used_for_five_minutes(rig: Rig) -> None:
    rig.start(fps=2.0)
    used = skew = 0
    for unit in rig.stream():
        used += len(unit.frames[:1])
        skew = max(skew, rig.skew(unit))
        assert rig.framer.waiting <= WAITING_SOUND
        rig.clock.wait(0.7 + 0.3 * len(unit.frames))
        if unit.stop >= 300:
            break
    assert skew < 1.0 and used > 100
    # What is too much is dropped as pictures, and told; sound stays whole.
    assert rig.framer.dropped_frames > 100 and rig.framer.dropped_samples == 0
    assert rig.warnings and all("frames dropped" in line for line in rig.warnings)


def test_a_turns_end_closes_the_unit_early(rig: Rig) -> None:
    rig.start()
    stops: list[float] = []
    for unit in rig.stream():
        stops.append(unit.stop)
        if len(stops) == 2:
            rig.clock.wait(0.4)
            moment = rig.capture.now()
            rig.capture.cut(moment)
        if len(stops) == 3:
            assert unit.stop == pytest.approx(moment, abs=1e-4)
            assert rig.capture.now() - moment < 0.1
        if len(stops) == 5:
            break
    assert stops[3] == pytest.approx(stops[2] + 1) and stops[2] < 2.5


def test_a_turns_end_does_not_wait_for_a_camera_that_is_lost(rig: Rig) -> None:
    rig.start(camera_faults=(Fault("gone", 3.0), *[Fault("open")] * 99))
    for unit in rig.stream():
        if unit.stop == 8.0:
            rig.clock.wait(0.4)
            rig.capture.cut(moment := rig.capture.now())
        if unit.start == 8.0:
            assert rig.capture.now() - moment < 0.4
            break


def test_muted_and_blind(rig: Rig) -> None:
    rig.start()
    seen, heard = [], []
    for unit in rig.stream():
        seen.append(len(unit.frames))
        heard.append(bool(unit.audio.any()))
        number = len(seen)
        off = 3 <= number < 6
        rig.capture.mute(off)
        rig.capture.blind(off)
        if number == 5:
            view = rig.capture.view()
            assert (view.camera_state, view.microphone_state) == ("off", "muted")
            assert view.frame is None and view.level_db == -120
            # The camera's light is out.
            assert all(video.released for video in rig.cv2.opened)
        if number == 9:
            break
    assert seen[:3] == [1, 1, 1] and seen[4:6] == [0, 0] and seen[8] == 1
    assert heard[4:6] == [False, False] and heard[8]
    view = rig.capture.view()
    assert view.frame is not None and view.level_db > -20
    assert rig.warnings == []


def test_the_tap_hears_every_sample_once(rig: Rig) -> None:
    heard: list[tuple[float, np.ndarray]] = []
    rig.start(tap=lambda time, samples: heard.append((time, samples)))
    units = rig.units(5)
    line = np.concatenate([samples for _, samples in heard])
    ends = np.cumsum([0] + [samples.size for _, samples in heard])
    assert [time for time, _ in heard] == [end / RATE for end in ends[:-1]]
    sound = np.concatenate([unit.audio for unit in units])
    np.testing.assert_array_equal(line[: sound.size], sound)


def test_what_the_tap_raises_ends_the_stream(rig: Rig) -> None:
    def tap(time: float, samples: np.ndarray) -> None:
        if time > 2.5:
            raise MediaError("the detector broke")

    rig.start(tap=tap)
    with pytest.raises(MediaError, match="the detector broke"):
        rig.units(10)
    assert all(stream.closed for stream in rig.sounddevice.opened)


def test_stop_ends_the_stream(rig: Rig) -> None:
    rig.start()
    count = 0
    for _ in rig.stream():
        count += 1
        if count == 3:
            rig.capture.stop()
    assert count == 3 and rig.capture.end == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(("camera", "microphone"), [(True, True), (True, False), (False, True)])
def test_a_duration_is_kept(rig: Rig, camera: bool, microphone: bool) -> None:
    rig.start(camera=camera, microphone=microphone, duration=4.5)
    units = list(rig.stream())
    assert [unit.stop for unit in units] == pytest.approx([1, 2, 3, 4, 4.5], abs=0.03)
    assert rig.capture.end == pytest.approx(4.5, abs=0.03)
    if microphone:
        assert unbroken(units) and units[-1].stop == 4.5
    else:
        assert all(unit.audio is None for unit in units)
    assert all(len(unit.frames) == camera for unit in units)


@pytest.mark.parametrize("leap", [-5.0, -0.5, 3.0, 7200.0])
def test_a_clock_that_leaps(rig: Rig, leap: float) -> None:
    rig.start()
    units = []
    for unit in rig.stream():
        units.append(unit)
        if len(units) == 5:
            rig.clock.leap(leap)
        if len(units) == 30:
            break
    starts = [unit.start for unit in units]
    assert starts == sorted(starts) and all(a.stop == b.start for a, b in pairwise(units))
    assert all(unit.audio.size == RATE for unit in units)
    # Both go on: sound without silence, and a picture in each unit.
    assert all(len(unit.frames) == 1 and (places(unit.audio) >= 0).all() for unit in units[12:])
    # The streams are still in step: frames and sound of one unit come from one second.
    for unit in units[12:]:
        # Fake frames go by the clock with its leap, fake sound by the samples that were taken.
        place = int(places(unit.audio)[0])
        lead = taken_at(unit.frames[0]) * RATE - place - (leap if leap else 0) * RATE
        assert abs((lead + RAMP // 2) % RAMP - RAMP // 2) < RATE * 0.5
    assert not any("trying" in line for line in rig.warnings)


def test_a_clocks_leap_ahead_is_filled_and_told(rig: Rig) -> None:
    rig.start()
    for unit in rig.stream():
        if unit.stop == 5.0:
            rig.clock.leap(3.0)
        if unit.stop > 20:
            break
    assert rig.capture.view().filled_samples == pytest.approx(3 * RATE, rel=0.2)
    assert any("lost" in line and "s of sound" in line for line in rig.warnings)


def test_hours_of_a_device_whose_clock_is_off(rig: Rig) -> None:
    rig.start(camera=False, sound={"drift": 3e-4})
    worst = 0.0
    for unit in rig.stream():
        worst = max(worst, abs(rig.clock.now() - rig.zero - unit.stop))
        if unit.stop >= 900:
            break
    # Uncorrected it would be 270 ms.
    assert worst < 0.1
    assert rig.capture.view().filled_samples == 0
    assert rig.warnings == []
