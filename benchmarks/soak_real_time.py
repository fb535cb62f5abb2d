"""Minutes of the clock from a virtual microphone and a virtual camera: nothing lost, in step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import Claim, table
from benchmarks.virtual_devices import (
    RATE,
    VirtualCamera,
    found_in,
    noise,
    number_of,
    numbered,
    virtual_microphone,
)
from omni_core import Session, UnitMedia
from omnilive.capture import Capture, choose_camera, choose_microphone, live_framer
from omnilive.models import Prepared

REST = 2.5
"""Seconds of stream beside what is played: it begins with the first unit and ends in time."""
WINDOW = RATE // 2
"""Samples before and after its place in which a unit's sound is looked for."""
FPS = 14.3
"""No whole number: units begin anywhere between two frames, so that a drift would show."""
ROUNDED = 2e-4
"""What 16 bits and the server's volume may change of a sample."""


@dataclass(frozen=True)
class Followed:
    """Units that came, and what the devices had given.

    Attributes:
        units: of the stream.
        lags: milliseconds from each unit's end until it was taken.
        given: when each frame was sent, by its number, in monotonic seconds.
        played: what was played, ``float32[n]`` at 16 kHz.
        began: monotonic second at which that began.
        zero: monotonic second of the stream's second 0.
        lost: frames and samples dropped, samples filled up, warnings: how many of each.
    """

    units: Sequence[UnitMedia]
    lags: Sequence[float]
    given: dict[int, float]
    played: np.ndarray
    began: float
    zero: float
    lost: dict[str, int]

    def late(self) -> tuple[int, np.ndarray, np.ndarray]:
        """How late the stream shows and sounds what its devices gave.

        Returns:
            Samples that were played and are not at their place in the stream, and seconds of
            picture and of sound for each unit that lies whole in what was played.
        """
        sound = np.concatenate([unit.audio for unit in self.units if unit.audio is not None])
        at, count = found_in(sound, self.played[: 2 * RATE]), self.played.size
        heard = np.zeros(count, np.float32)
        part = sound[at : at + count]
        heard[: part.size] = part
        missing = int((np.abs(heard - self.played) > ROUNDED).sum())
        picture, voice = [], []
        for unit in self.units:
            place = round(unit.start * RATE) - at
            if not unit.frames or unit.audio is None or place < 0:
                continue
            if place + unit.audio.size > count:
                break
            first = max(0, place - WINDOW)
            near = self.played[first : place + unit.audio.size + WINDOW]
            start = self.zero + unit.start
            voice.append(start - self.began - (first + found_in(near, unit.audio)) / RATE)
            picture.append(start - self.given[number_of(unit.frames[0])])
        return missing, np.asarray(picture), np.asarray(voice)


def follow(prepared: Prepared, minutes: float, budget: int) -> Followed:
    """Follow both devices into a session.

    Raises:
        Lacking: no virtual microphone can be had here.
        OmniError: a device or the model fails.
    """
    model, played = prepared.load(), noise(minutes * 60 - REST)
    warnings: list[str] = []
    units: list[UnitMedia] = []
    lags: list[float] = []
    began = zero = 0.0
    with virtual_microphone() as microphone, VirtualCamera(numbered, FPS) as camera:
        eye, ear = choose_camera(camera.address), choose_microphone("default")
        framer = live_framer(model.frontend, eye, ear)
        session = Session(model, budget=budget)
        with Capture(eye, ear, framer, duration=minutes * 60, warn=warnings.append) as capture:
            capture.open()
            for unit in capture.units():
                if not units:
                    zero = time.monotonic() - capture.now()
                    began = microphone.play(played)
                lags.append(capture.lag(unit.stop))
                session.append(unit)
                units.append(unit)
            view = capture.view()
    lost = {
        "dropped_frames": view.dropped_frames,
        "dropped_samples": view.dropped_samples,
        "filled_samples": view.filled_samples,
        "warnings": len(warnings),
    }
    return Followed(units, lags, camera.given, played, began, zero, lost)


def measure(prepared: Prepared, minutes: float, budget: int) -> dict[str, Any]:
    """A row about a run of so many minutes; times in milliseconds."""
    found = follow(prepared, minutes, budget)
    missing, picture, sound = found.late()
    skew = picture - sound
    minute = round(60 / prepared.frontend.seconds)
    steps = range(0, max(1, skew.size - minute // 2), minute)
    heard = sum(unit.audio.size for unit in found.units if unit.audio is not None)
    return {
        "part": "real time",
        "model": prepared.name,
        "minutes": minutes,
        "units": len(found.units),
        "measured_units": int(skew.size),
        "unit_s": prepared.frontend.seconds,
        "played_samples": int(found.played.size),
        "missing_samples": missing,
        "short_samples": round(minutes * 60 * RATE) - heard,
        **found.lost,
        "skew_ms_median": _median(skew),
        "skew_ms_most": round(1e3 * float(np.abs(skew).max()), 2),
        "skew_ms_each_minute": [_median(skew[at : at + minute]) for at in steps],
        "picture_late_ms_median": _median(picture),
        "sound_late_ms_median": _median(sound),
        "taken_after_ms_median": round(median(found.lags), 2),
        "taken_after_ms_most": round(max(found.lags), 2),
    }


def _median(seconds: np.ndarray) -> float:
    return round(1e3 * float(np.median(seconds)), 2)


def claims(row: dict[str, Any]) -> list[Claim]:
    """What is to hold of a run."""
    lost = {
        "samples played that are not at their place": "missing_samples",
        "samples that the stream is too short by": "short_samples",
        "samples dropped": "dropped_samples",
        "samples filled up with silence": "filled_samples",
    }
    return [
        Claim("picture and sound apart, s, most", row["skew_ms_most"] / 1e3, row["unit_s"]),
        *(Claim(name, abs(row[key]), 0) for name, key in lost.items()),
    ]


def show(row: dict[str, Any]) -> None:
    """Print a row, a figure a line."""
    lines = [[name.replace("_", " "), f"{value}"] for name, value in row.items() if name != "part"]
    print(table(["virtual devices, real time", ""], lines))
