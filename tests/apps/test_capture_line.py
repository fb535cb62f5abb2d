"""Blocks of sound: resampled without borders, and laid on one line that keeps the clock."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fake_devices import ramp
from hypothesis import given
from hypothesis import strategies as st

from omnilive.capture.clock import LONGEST_SLEEP, SteadyTime, VirtualClock
from omnilive.capture.levels import decibels
from omnilive.capture.line import WINDOW, SoundLine
from omnilive.capture.resampling import Resampler, stretched

RATE = 16_000


def lay_all(
    line: SoundLine,
    seconds: float,
    *,
    pace: float = 1.0,
    jitter: np.ndarray | None = None,
) -> np.ndarray:
    """Lay 20 ms blocks that arrive ``pace`` times as long apart as they are."""
    parts = []
    for number in range(round(seconds * 50)):
        due = (number + 1) * 0.02 * pace
        arrived = due + (0.0 if jitter is None else float(jitter[number % jitter.size]))
        samples = ramp(number * 320, 320)
        parts.append(line.lay(number * 0.02, 0.02, arrived - 0.02, arrived, samples))
    return np.concatenate(parts)


@given(
    st.lists(st.floats(0, 0.15), min_size=20, max_size=60).map(np.array),
    st.sampled_from([1.0, 1.0005, 0.9995]),
)
def test_late_callbacks_change_no_sample(jitter: np.ndarray, pace: float) -> None:
    line = SoundLine()
    jitter[0], jitter[1] = 0.0, 0.0
    sound = lay_all(line, 8.0, pace=pace, jitter=jitter)
    np.testing.assert_array_equal(sound, ramp(0, sound.size))
    assert (line.filled, line.late, line.reach) == (0, 0, 8 * RATE)


@pytest.mark.parametrize("pace", [1 + 3e-4, 1 - 3e-4])
def test_a_drift_is_corrected_without_clicks(pace: float) -> None:
    line = SoundLine()
    t = np.arange(0, 300 * RATE)
    tone = (0.5 * np.sin(2 * np.pi * 300 / RATE * t)).astype(np.float32)
    parts = []
    for number in range(300 * 50):
        arrived = (number + 1) * 0.02 * pace
        block = tone[number * 320 : (number + 1) * 320]
        parts.append(line.lay(number * 0.02, 0.02, arrived - 0.02, arrived, block))
    sound = np.concatenate(parts)
    # Uncorrected, the line would be 90 ms off in the end.
    assert abs(line.reach / RATE - 300 * pace) < 0.03
    assert line.filled == line.late == 0
    # A lost or repeated sample would step by up to 0.06; the tone itself bends by 0.007.
    assert np.abs(np.diff(sound, 2)).max() < 0.012


def test_blocks_that_the_device_counted_and_nobody_got_are_silence() -> None:
    line = SoundLine()
    first = line.lay(0.0, 0.02, 0.0, 0.02, ramp(0, 320))
    second = line.lay(0.1, 0.02, 0.1, 0.12, ramp(1600, 320))
    assert first.size == 320 and second.size == 1280 + 320
    assert not second[:1280].any() and (second[1280:] == ramp(1600, 320)).all()
    assert line.filled == 1280


def test_what_comes_after_silence_took_its_place_is_dropped() -> None:
    line = SoundLine()
    line.lay(0.0, 0.02, 0.0, 0.02, ramp(0, 320))
    assert line.fill(0.03).size == 160 and line.fill(0.03).size == 0
    assert (line.lay(0.02, 0.02, 0.02, 0.5, ramp(320, 320)) == ramp(480, 160)).all()
    assert (line.lay(0.04, 0.02, 0.04, 0.5, ramp(640, 320)) == ramp(640, 320)).all()
    assert (line.filled, line.late, line.reach) == (160, 160, 960)


def test_a_constant_delay_is_no_drift() -> None:
    line = SoundLine()
    sound = lay_all(line, 3 * WINDOW, jitter=np.array([0.0] * 20 + [0.08] * 2000))
    np.testing.assert_array_equal(sound, ramp(0, sound.size))


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000, 96_000])
def test_any_blocks_give_the_same_sound(rate: int) -> None:
    rng = np.random.default_rng(rate)
    sound = rng.uniform(-0.5, 0.5, rate).astype(np.float32)
    whole = Resampler(rate).feed(sound)
    pieces, resampler, at = [], Resampler(rate), 0
    while at < sound.size:
        size = int(rng.integers(1, 2000))
        pieces.append(resampler.feed(sound[at : at + size]))
        at += size
    joined = np.concatenate(pieces)
    np.testing.assert_allclose(joined[: whole.size], whole[: joined.size], atol=1e-6)
    assert abs(joined.size - RATE) < 100


@pytest.mark.parametrize("rate", [44_100, 48_000])
def test_nothing_folds_back_and_time_is_kept(rate: int) -> None:
    t = np.arange(rate) / rate
    high = Resampler(rate).feed(np.sin(2 * np.pi * 10_000 * t).astype(np.float32))
    low = Resampler(rate).feed(np.sin(2 * np.pi * 3_000 * t).astype(np.float32))
    assert decibels(high[500:]) < -50 and decibels(low[500:]) == pytest.approx(-3, abs=0.2)
    click = np.zeros(rate, np.float32)
    click[rate // 2] = 1
    assert abs(int(np.argmax(Resampler(rate).feed(click))) - RATE // 2) <= 1


def test_numbers_and_channels() -> None:
    resampler = Resampler(RATE)
    whole = np.array([[32767, 0], [-32768, -32768], [0, 0]], np.int16)
    np.testing.assert_allclose(resampler.feed(whole), [0.5, -1, 0], atol=1e-4)
    bad = np.array([np.nan, np.inf, -np.inf, 0.5, 7], np.float32)
    np.testing.assert_array_equal(resampler.feed(bad), np.float32([0, 0, 0, 0.5, 1]))
    assert resampler.broken == 3
    # What is handed in may be the device's own memory.
    assert np.isnan(bad[0])


@given(st.integers(100, 400), st.sampled_from([-1, 0, 1]))
def test_stretching_keeps_the_ends(size: int, step: int) -> None:
    sound = np.sin(np.arange(size, dtype=np.float32) / 9)
    bent = stretched(sound, size + step)
    assert bent.size == size + step and bent.dtype == np.float32
    assert bent[0] == sound[0] and bent[-1] == pytest.approx(sound[-1], abs=1e-6)
    place = np.linspace(0, size - 1, bent.size)
    np.testing.assert_allclose(bent, np.sin(place / 9), atol=5e-3)


def test_the_virtual_clock_does_what_is_due_in_order() -> None:
    clock, done, event = VirtualClock(), [], threading.Event()

    def work(name: str, pause: float):
        try:
            for number in range(3):
                yield pause
                done.append((round(clock.now(), 3), f"{name}{number}"))
        finally:
            done.append((round(clock.now(), 3), f"{name} closed"))

    clock.run("a", work("a", 1.0))
    second = clock.run("b", work("b", 0.4))
    clock.wait(1.1)
    second.stop()
    assert not second.alive
    clock.wait(5.0, event)
    assert done == [
        (0.4, "b0"), (0.8, "b1"), (1.0, "a0"), (1.1, "b closed"), (2.0, "a1"), (3.0, "a2"),
        (3.0, "a closed"),
    ]  # fmt: skip
    event.set()
    clock.wait(5.0, event)
    assert clock.now() == pytest.approx(6.1)


def test_steady_time_never_goes_back_and_leaves_sleep_out() -> None:
    clock = VirtualClock()
    steady = SteadyTime(clock)
    clock.wait(2.0)
    assert steady.now() == 2.0
    clock.leap(-100.0)
    assert steady.now() == 2.0
    clock.wait(1.0)
    assert steady.now() == 3.0
    clock.leap(LONGEST_SLEEP + 1)
    assert steady.now() == 3.0
    clock.leap(LONGEST_SLEEP - 1)
    assert steady.now() == 12.0
