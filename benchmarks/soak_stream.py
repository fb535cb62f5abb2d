"""Hours of the stream world, cut into units as a live stream is: turns end anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from omni_core import UnitMedia
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.frontend.framing import UnitFramer
from streamworld import banks, render, script
from streamworld.questions import draw

SCENE = 16
"""Seconds of a scene; every other one ends in a question."""
POOL = 60
"""Scenes that are rendered; a longer stream shows them again, cut elsewhere."""
BLIND, DEAF = 7, 11
"""Every so many scenes the camera is off, and the microphone."""
SHORTEST = 0.2
"""Seconds of the shortest unit that a typed line ends."""
SEEN = {("now", topic): 1.0 for topic in ("thing", "colour", "digit", "shape", "clothing")}
"""Typed questions are about what is on the screen: its end is all that a cut leaves alone."""


@dataclass(frozen=True)
class Asked:
    """A question at the end of a unit.

    Attributes:
        text: as typed; empty where it was spoken, and is in the sound.
        truth: the right answer, or None where the camera or the microphone was off.
    """

    text: str
    truth: str | None


@dataclass(frozen=True)
class Moment:
    """A unit, and what is asked when it has closed."""

    media: UnitMedia
    asked: Asked | None


@dataclass(frozen=True)
class _Scene:
    frames: Any
    sounds: Any
    asked: Asked


def stream(seconds: float, unit: float, fps: float, seed: int = 0) -> Iterator[Moment]:
    """A stream of so many seconds, in whole scenes.

    Units go through the framer of live streams. In each scene a turn ends at any time, which cuts
    a unit early, and so does a question; the next unit begins at the cut.

    Args:
        seconds: at least; the last scene is played to its end.
        unit: seconds of a full unit.
        fps: frames a second that are sampled.
        seed: of scenes and cuts.
    """
    count = int(-(-seconds // SCENE))
    scenes = _scenes(min(POOL, count), seed)
    rng = np.random.default_rng(seed)
    framer = UnitFramer(unit, fps, waiting=4 * SCENE, waiting_sound=4 * SCENE)
    for number in range(count):
        scene, start = scenes[number % len(scenes)], float(number * SCENE)
        deaf, blind = number % DEAF == DEAF - 1, number % BLIND == BLIND - 1
        stop = start + SCENE
        asked = None
        cuts = [start + rng.uniform(1, SCENE - 3 * unit)]
        if number % 2:
            asked = scene.asked if not (deaf or blind) else replace(scene.asked, truth=None)
            # A typed line ends anywhere in the last second; what was spoken is heard to its end.
            early = rng.uniform(0, unit - SHORTEST) if asked.text else 0.0
            cuts += [stop - 1.0, stop - early]
        for cut in cuts:
            framer.cut(cut)
        for second in range(SCENE):
            framer.push_frame(start + second, scene.frames[second])
            framer.push_sound(start + second, scene.sounds[second])
        framer.skip_picture(stop)
        at = round(cuts[-1] * SAMPLE_RATE) / SAMPLE_RATE
        while (media := framer.pop(0)) is not None:
            if blind:
                media = replace(media, frames=())
            if deaf:
                media = replace(media, audio=None)
            asks = asked is not None and abs(media.stop - at) < 1e-4
            yield Moment(media, asked if asks else None)


def _scenes(count: int, seed: int) -> list[_Scene]:
    bank = banks.load(banks.SHIPPED, "test")
    written = script.write(seed, count, SCENE, "test", spoken=0.5)
    questions = draw(written, seed, 1, mix=SEEN)
    found = []
    for row in range(count):
        units = written.take(slice(row, row + 1)).flat()
        asked = Asked(questions.text(row, 0), questions.answer_text(row, 0))
        found.append(_Scene(render.frames(units, bank), render.sounds(units, bank), asked))
    return found
